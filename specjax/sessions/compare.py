"""Two conversations side by side: what they share, where they part, and how probable each continuation is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from specjax.errors import SpecjaxError
from specjax.runtime.memory import common_prefix
from specjax.sessions.look import BOX, REPLY, count_of, elided, marked, shown

if TYPE_CHECKING:
    from specjax.sessions.session import Session


@dataclass(frozen=True, eq=False)
class Continuation:
    """What one of two conversations says after their common beginning.

    Attributes:
        name: of the session, or its place: "first" or "second".
        tokens, text: all that follows; empty if the other conversation goes on from the end of this one.
        logprobs: of each token, given all before it: natural logarithms of the distribution of the session's own model,
            before temperature and filters.
        other_logprobs: the same by the model of the other session; equal if it is the same model.
    """

    name: str
    tokens: tuple[int, ...] = field(repr=False)
    text: str
    logprobs: tuple[float, ...] = field(repr=False)
    other_logprobs: tuple[float, ...] = field(repr=False)

    @property
    def total(self) -> float:
        """The log-probability of the whole continuation."""
        return math.fsum(self.logprobs)

    @property
    def other_total(self) -> float:
        """The same by the model of the other session."""
        return math.fsum(self.other_logprobs)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Where two conversations part.

    Attributes:
        first, second: the sessions.
        shared: tokens that both begin with.
        continuations: what each of them says after these.
    """

    first: Session = field(repr=False)
    second: Session = field(repr=False)
    shared: int
    continuations: tuple[Continuation, Continuation]

    @property
    def equal(self) -> bool:
        """Whether the two conversations are the same."""
        return not any(each.tokens for each in self.continuations)

    @property
    def one_model(self) -> bool:
        """Whether both sessions are of one model, so that there is one opinion of each continuation."""
        return self.first.model is self.second.model

    def _end_of_shared(self) -> str:
        return shown(self.first.model, self.first.conversation[max(self.shared - 60, 0) : self.shared])

    def _figures(self, index: int) -> str:
        own, other = self.continuations[index], self.continuations[1 - index]
        if not own.tokens:
            return "nothing more"
        text = f"{count_of(len(own.tokens), 'token')}, log-probability {own.total:.2f}"
        if not self.one_model:
            text += f" (by the model of {other.name}: {own.other_total:.2f})"
        return f"{text}; its first token {own.logprobs[0]:.2f}"

    def __repr__(self) -> str:
        share = f"{count_of(self.shared, 'token')} shared, ending in {elided(self._end_of_shared())!r}"
        if self.equal:
            return f"Comparison(equal: {share})"
        lines = [
            f"  {each.name}: {elided(each.text)!r} ({self._figures(index)})"
            for index, each in enumerate(self.continuations)
        ]
        return "\n".join([f"Comparison({share}; then", *lines]) + ")"

    def _repr_html_(self) -> str:
        """The end of what is shared, and the continuations, side by side where there is room, for notebooks."""
        head = f"<small>{count_of(self.shared, 'token')} shared</small><pre style='{BOX}'>"
        begin = max(self.shared - 60, 0)
        head += marked(self.first.model, self.first.conversation, self.first.turns, begin, self.shared) + "</pre>"
        if self.equal:
            return head + "<small>The conversations are equal.</small>"
        cells = ""
        for index, (own, session) in enumerate(zip(self.continuations, (self.first, self.second), strict=True)):
            text = marked(session.model, session.conversation, session.turns, self.shared, len(session.conversation))
            cells += (
                "<div style='flex: 1 1 16em; min-width: 0'>"
                f"<b>{escape(own.name)}</b><pre style='{BOX}'>{text}</pre>"
                f"<small>{escape(self._figures(index))}</small></div>"
            )
        note = f"<small><span style='{REPLY}'>marked</span>: said by the model</small>"
        return f"{head}<div style='display: flex; flex-wrap: wrap; gap: 1em'>{cells}</div>{note}"


def compare(first: Session, second: Session) -> Comparison:
    """Put two sessions side by side, see `Session.compare`."""
    vocabularies = [session.model.target.vocab_size for session in (first, second)]
    if vocabularies[0] != vocabularies[1]:
        raise SpecjaxError(
            f"the models of the two sessions have vocabularies of {vocabularies[0]} and {vocabularies[1]} tokens, so"
            " that their tokens do not mean the same; compare sessions of models with one vocabulary"
        )
    shared = common_prefix(first.conversation, second.conversation)
    if not shared:
        raise SpecjaxError(
            "the two conversations have no token in common at their start, so nothing can be said of where they part;"
            " compare sessions that go on from one text"
        )
    prefix = first.conversation[:shared]
    rests = [session.conversation[shared:] for session in (first, second)]
    models = [first.model] if first.model is second.model else [first.model, second.model]
    judged = [[tuple(row) for row in model.score_batch([prefix] * 2, rests)] for model in models]
    names = [session.name or place for session, place in ((first, "first"), (second, "second"))]
    continuations = [
        Continuation(names[index], rests[index], shown(session.model, rests[index]), own, other)
        for index, session, own, other in (
            (0, first, judged[0][0], judged[-1][0]),
            (1, second, judged[-1][1], judged[0][1]),
        )
    ]
    return Comparison(first, second, shared, (continuations[0], continuations[1]))
