"""What was found of two texts that should be equal, in words and as plain data."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from specjax.analysis.diverge.judging import Candidate, Difference
from specjax.analysis.diverge.states import StateCheck

Verdict = Literal["equal", "near-tie", "sampling", "settings", "state gone wrong", "another model"]
"""What is behind a difference:

* "equal": there is none, and no state that was looked at is wrong;
* "near-tie": the logits of the two tokens tie within rounding;
* "sampling": both tokens can come from these logits, and were drawn differently;
* "settings": each side has what its own cache types make of the text, or what its own grammar, bias and penalties
  leave;
* "state gone wrong": a run of this model says or carries what its text does not give;
* "another model": tokens from elsewhere that this model does not say, so that the model, the tokenizer, the prompt or
  the program is another one.
"""

WIDTH = 110
"""How many columns a report has; longer lines are wrapped."""

FAULTS = ("state gone wrong", "another model")


@dataclass(frozen=True)
class Looked:
    """What became of one side.

    Attributes:
        name: its settings, or its file.
        tokens: how many it has.
        state: the comparison of its state; None if its state was not looked at.
        why_not: why not, as a sentence; empty if it was.
    """

    name: str
    tokens: int
    state: StateCheck | None
    why_not: str = ""


@dataclass(frozen=True)
class DivergenceReport:
    """Where two texts part, and why. Print it, or look at the attributes.

    Attributes:
        verdict: see `Verdict`.
        reason: the verdict in a sentence or several.
        sides: the two sides.
        equal: how many tokens at the start are equal.
        difference: the first difference; None if one text is the start of the other, or if their prompts differ.
    """

    verdict: Verdict
    reason: str
    sides: tuple[Looked, Looked]
    equal: int
    difference: Difference | None

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be: equal, or different for a harmless reason."""
        return self.verdict not in FAULTS

    def __str__(self) -> str:
        lines = [f"{letter}  {side.name}: {side.tokens} tokens" for letter, side in zip("AB", self.sides, strict=True)]
        lines += ["", *self._texts()]
        for letter, side in zip("AB", self.sides, strict=True):
            lines += ["", *_state_lines(letter, side)]
        lines += ["", f"verdict: {self.verdict}. {self.reason}"]
        return "\n".join(part for line in lines for part in _wrapped(line))

    def _texts(self) -> list[str]:
        if (found := self.difference) is None:
            return [f"The first {self.equal} tokens are equal." if self.equal else "No tokens could be compared."]
        first = f"The first {self.equal} tokens are equal. " if self.equal else ""
        return [
            f"{first}Token {found.index} (position {found.position} of the text) differs:",
            *_table(found.candidates),
            f"Their margin is {found.margin:.3g}, {found.relative_margin:.2g} of the largest logit; below"
            f" {found.limit:.2g} it is a near-tie.",
            f"Rounding, measured here: the text fed in pieces, with caches, moves the margin by {found.rounding:.2g},"
            f" and no logit by more than {found.logit_rounding:.2g}.",
        ]

    def as_document(self) -> dict[str, Any]:
        """The report as values for JSON; what is no finite number is None."""
        document = {
            "ok": self.ok,
            **asdict(self),
            "difference": None if self.difference is None else _difference_document(self.difference),
            "sides": [_side_document(side) for side in self.sides],
        }
        return json.loads(json.dumps(document), parse_constant=lambda _: None)


def _wrapped(line: str) -> list[str]:
    """A line in pieces that fit a screen; those after the first stand further in."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _difference_document(difference: Difference) -> dict[str, Any]:
    return {**asdict(difference), "near_tie": difference.near_tie, "explained": difference.explained}


def _side_document(side: Looked) -> dict[str, Any]:
    document = asdict(side)
    if side.state is not None:
        document["state"]["healthy"] = side.state.healthy
        for values, deviation in zip(document["state"]["deviations"], side.state.deviations, strict=True):
            values["words"] = str(deviation)
    return document


def _table(candidates: tuple[Candidate, Candidate]) -> list[str]:
    """Both candidates beside each other; log-probabilities and ranks are those of the whole vocabulary."""
    rows: list[tuple[str, ...]] = [("", "A", "B")]
    parts: dict[str, Callable[[Candidate], str]] = {
        "token": lambda each: f"{each.token} {each.text!r}",
        "logit": lambda each: f"{each.logit:.6g}",
        "log-probability": lambda each: f"{each.logprob:.4f}",
        "rank": lambda each: str(each.rank),
        "behind its choice": lambda each: "is chosen" if each.shortfall == 0 else f"by {each.shortfall:.3g}",
    }
    if any(each.allowed is not None for each in candidates):
        parts["in its grammar"] = lambda each: {None: "has none", True: "allowed", False: "not allowed"}[each.allowed]
    rows += [(name, *map(value, candidates)) for name, value in parts.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _state_lines(letter: str, side: Looked) -> list[str]:
    """What is known of a side's state."""
    if (state := side.state) is None:
        return [f"state of {letter}: not looked at. {side.why_not}"]
    drafts = ""
    if state.drafted:
        drafts = f" {state.drafted_alike} of {state.drafted} rounds drafted what a fresh state drafts."
    if state.of_feeding:
        lines = [
            f"state of {letter}: WRONG. Already its text, fed in pieces and then token by token, leaves another state"
            " than one call over all of it:"
        ]
        return lines + _deviation_lines(state)
    if state.first is None:
        return [
            f"state of {letter}: right. It was compared {state.moments} times, after the prompt and after each round,"
            f" with what feeding gives: {state.parts} parts, rounding {state.rounding:.1g}.{drafts}"
        ]
    number, before, after, verified = state.first
    when = f"after round {number}, which verified {verified} tokens from position {before} on and kept {after - before}"
    lines = [f"state of {letter}: WRONG, first {when if number else 'after the prompt'}.{drafts}"]
    lines += _deviation_lines(state)
    if state.drafts is not None:
        ours, fresh = (", ".join(map(str, drafts)) for drafts in state.drafts)
        lines.append(f"  the next drafts are {ours}; a fresh state drafts {'the same' if ours == fresh else fresh}")
    return lines


MOST_LINES = 6
"""The most deviations that are shown; JSON has them all."""


def _deviation_lines(state: StateCheck) -> list[str]:
    """A line for each part that is wrong, up to a number of them."""
    left = len(state.deviations) - MOST_LINES
    more = [f"  and {left} more parts"] if left > 0 else []
    return [*(f"  {deviation}" for deviation in state.deviations[:MOST_LINES]), *more]
