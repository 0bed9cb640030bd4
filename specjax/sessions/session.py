"""A conversation as a value. Each turn starts from the caches of the turns before.

A session holds the state after its last turn. The next prompt is the whole conversation so far; what it shares with
what the session has seen is not computed again. How far back a session can go depends on the model: caches of full
attention can be cut anywhere, a ring only as far as its window still stands in it, and recurrent states, like a
drafter's waiting rows, only be taken up where a copy was kept: after each prompt and at the end of each turn. To stand
anywhere else, a session goes on from the last place before it that it can take up, and feeds the tokens in between.

A full session may drop its oldest tokens and go on. The other tokens are not computed again: their keys are rotated to
the new positions. Above the first layer they still carry something of the dropped tokens (see `specjax.state.shift`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float

from specjax.decoding.decoder import Decoder
from specjax.errors import SpecjaxError
from specjax.mesh.hosts import fetched
from specjax.runtime.features import span_of
from specjax.runtime.feeding import extended, feed, read_logits
from specjax.runtime.generation import Generation
from specjax.runtime.memory import CutLimits, Memory, ReturnPoint, common_prefix, within_budget
from specjax.runtime.options import GenerateOptions, OptionChanges, options_of, takes_options
from specjax.runtime.prompts import Prompt
from specjax.runtime.request import Start, Update
from specjax.runtime.stream import generation_of
from specjax.sessions.beginning import Beginning, Reuse, back, beginning, resumed
from specjax.sessions.compare import Comparison, compare
from specjax.sessions.context_shift import DEFAULT_KEEP, Dropped, WhenFull, check_can_shift, with_cut
from specjax.sessions.look import no_session, session_html, session_text
from specjax.sessions.turns import Turn, turns_until, with_turn
from specjax.state import Cut

if TYPE_CHECKING:
    from specjax.runtime.model import Model

DEFAULT_POINT_BYTES = 256 * 2**20


@dataclass(frozen=True, repr=False)
class Session:
    """A conversation, made by `specjax.Model.session`. A turn returns a new session. The old one does not change, so
    keeping it is a fork.

    Attributes:
        model, options: the model, and the options of every turn.
        slots: how many tokens the state can hold.
        when_full: what happens when the slots are full: "error", or "shift" to drop the oldest tokens.
        keep: how many tokens at the start are never dropped.
        point_bytes: budget for points to go back to; the oldest are given up first.
        name: how trees of sessions call it, see `fork`.
        conversation: the last prompt and the reply to it, including all tokens that were dropped.
        turns: who said what of it.
        drops: which tokens were dropped from the conversation and when, in order of time.
        memory: what the state holds of it; the last token is missing. None before the first turn.
        reuse: how much the last turn, or going back, took from the session before; None before the first turn.
    """

    model: Model
    options: GenerateOptions
    slots: int
    when_full: WhenFull = "error"
    keep: int = DEFAULT_KEEP
    point_bytes: int = DEFAULT_POINT_BYTES
    name: str | None = None
    conversation: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    drops: tuple[Dropped, ...] = ()
    memory: Memory | None = None
    reuse: Reuse | None = None

    def __repr__(self) -> str:
        return session_text(self)

    def _repr_html_(self) -> str:
        """The conversation with the model's part marked and the figures below, for notebooks."""
        return session_html(self)

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the state holds of the conversation."""
        return () if self.memory is None else self.memory.tokens

    @property
    def text(self) -> str:
        """The conversation as text, without control tokens. It is empty if the model has no tokenizer."""
        return self.model.decode(self.conversation)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Which tokens were dropped from the conversation, in order of time."""
        return tuple(dropped.cut for dropped in self.drops)

    @takes_options
    def generate(
        self,
        prompt: Prompt,
        observe: Callable[[Update], None] | None = None,
        **changes: Unpack[OptionChanges],
    ) -> tuple[Generation, Session]:
        """One turn.

        With `when_full="shift"` the session makes room when it is full: it drops the older half of the tokens after the
        first `keep`. It does so before the new tokens of the prompt are computed; they must fit into the room that is
        free then. It does so as often as needed while the reply is generated, so the reply can be of any length.

        Args:
            prompt: the whole conversation, as text or token ids, including the tokens that were dropped. They are left
                out again if the prompt starts with `conversation`.
            observe: called with tokens as they become known, about every 30 ms.
            changes: other options for this turn: `chat.generate(prompt, max_tokens=20, seed=2)`. The types of the
                caches and `rollback` cannot change, and `draft` is at most that of the session.

        Returns:
            The generation, and the session after it. Unless something was dropped, its tokens are those of a generation
            without a session.

        A grammar (`json_schema`, `regex`) begins with the reply. If the prompt is the conversation as it stands and
        ends in a reply, as after `rewind`, that reply goes on, and so does its grammar.

        Raises:
            PromptError: the prompt is empty, has ids outside the vocabulary, or leaves no room in the session; or it
                ends in a reply that the grammar does not allow.
            ValueError: the state of the session cannot go on with these options.
        """
        options = self._turn_options(changes)
        given = tuple(self.model.encode(prompt))
        begin = beginning(self, given)
        ids, drops, limits = begin.ids, begin.drops, begin.memory.limits
        points = list(begin.memory.points)
        start = Start(
            begin.memory.state,
            len(begin.memory.tokens),
            dropped=len(given) - len(ids),
            prefilled=lambda state: points.append(ReturnPoint.of(state, len(ids))),
        )
        when_full = self.cut_when_full
        most_drafts = replace(options, draft=self.options.draft)
        engine = self.model.engine([options, most_drafts], seats=1, slots=self.slots)
        begun = self._begun_reply(given)
        job = engine.submit(self.model.request(ids, options, start=start, when_full=when_full, begun=begun))
        for update in engine.run(live=observe is not None):
            if observe is not None:
                observe(update)
        generation, state = generation_of(self.model, job, options), engine.state.sequences
        text = (*ids, *generation.tokens)
        for _ in range(job.cuts):
            assert when_full is not None
            points = [point for point in points if point.length <= when_full.keep]
            limits = limits.after_writing(self.slots).after_cut(when_full)
            text, drops = when_full.left_of(text), with_cut(drops, when_full, self.slots)
        held = int(state.length[0])
        memory = Memory(text[:held], state, limits.after_writing(held), tuple(points))
        if held < len(text):
            memory = replace(memory, points=(*points, ReturnPoint.of(state, held)))
        else:  # the device learns of a stop string late, and has gone on
            memory = resumed(self, memory, text)
            memory = extended(memory, self.decoder, self.model.params, text[len(memory.tokens) : -1])
        return generation, self._after(given, generation.tokens, drops, memory, begin.reuse(len(begin.rest)))

    def feed(self, prompt: Prompt) -> Session:
        """Let the session read a prompt and say nothing.

        What goes on from the new session, as often as you like, does not compute the prompt again: other seeds, other
        options, other continuations. Its state holds the prompt but for the last token, as after a turn.

        Args:
            prompt: the whole conversation, see `generate`.

        Raises:
            PromptError: as `generate`.
        """
        given = tuple(self.model.encode(prompt))
        return self._holding(given, beginning(self, given))

    def at(self, length: int) -> Session:
        """The session as it stood after the first `length` tokens of the conversation.

        What can be taken up is not computed again: the caches up to there, or the last kept point before. Tokens from
        there on are fed again, and `reuse.fed` of the new session says how many. Tokens that were dropped afterwards
        are there again. Going on from the new session gives the tokens that a session would give which never went
        further. This session does not change.

        Raises:
            ValueError: the conversation does not have so many tokens.
            SpecjaxError: tokens were dropped before that place, and the state of that time is not to be had any more.
        """
        whole = len(self.conversation)
        if not isinstance(length, Integral) or not 0 <= length <= whole:
            raise ValueError(f"length is {length!r}; the conversation has {whole} tokens: give 0 to {whole}")
        if length == whole:
            return self
        if not length:
            return replace(self, conversation=(), turns=(), drops=(), memory=None, reuse=Reuse(0, 0, 0))
        given = self.conversation[:length]
        return self._holding(given, back(self, given, length - 2))

    def rewind(self, n: int) -> Session:
        """The session with the last n tokens of the conversation taken back; see `at`.

        Raises:
            ValueError: the conversation has fewer tokens, or n is negative.
            SpecjaxError: see `at`.
        """
        whole = len(self.conversation)
        if not isinstance(n, Integral) or not 0 <= n <= whole:
            raise ValueError(f"n is {n!r}; the conversation has {whole} tokens, so 0 to {whole} can be taken back")
        return self.at(whole - n)

    def next_logits(self) -> Float[np.ndarray, "V"]:
        """The target's logits for the token after the conversation, float32. The session does not change.

        Raises:
            SpecjaxError: there is no conversation yet, or no slot is free for its last token.
        """
        begin = back(self, self.conversation, len(self.conversation))
        self._check_readable(len(begin.ids))
        _, logits = feed(self.decoder, self.model.params, begin.memory.state, begin.rest)
        return fetched(logits)[: self.model.target.vocab_size].astype(np.float32)

    def logits(self, start: int = 0, stop: int | None = None) -> Float[np.ndarray, "T V"]:
        """The target's logits in a span of the conversation, float32; row p predicts the token after start + p.

        Only the span is computed, and what lies between it and the last place before it that can be taken up, see `at`.
        The session does not change.

        Args:
            start, stop: tokens of the conversation, as in a slice of a list: `logits(-5)` has the last five rows.

        Raises:
            ValueError: the span is empty.
            SpecjaxError: as `next_logits` and `at`; or tokens were dropped within the span.
        """
        self._check_readable(0)
        start, stop = span_of(start, stop, len(self.conversation))
        if broken := [dropped.at for dropped in self.drops if start < dropped.at < stop]:
            raise SpecjaxError(
                f"the session dropped tokens after {broken[0]} tokens, within the span from {start} to {stop}; ask for"
                " the logits before and after that place one after the other"
            )
        span = self.conversation[start:stop]
        begin = back(self, self.conversation[: start + 1], start)
        self._check_readable(len(begin.ids) - 1 + len(span))
        held = extended(begin.memory, self.decoder, self.model.params, begin.rest[:-1])
        return read_logits(self.model.target, self.model.params, held.state, span)

    def compare(self, other: Session) -> Comparison:
        """Where this conversation and another one part, and how probable the model finds both continuations.

        The other session may be one of another model with the same vocabulary: each model then judges both.

        Raises:
            SpecjaxError: the two do not begin alike, or have different vocabularies.
            TypeError: the other is no session.
        """
        if not isinstance(other, Session):
            raise no_session(other)
        return compare(self, other)

    def fork(self, name: str) -> Session:
        """The session under a name, which trees of sessions show and later turns keep, see `specjax.session_tree`.

        A fork without a name needs no method: keep the session.
        """
        return replace(self, name=name)

    def shift(self, *, drop: int, keep: int | None = None) -> Session:
        """Drop `drop` tokens after the first `keep` (default: `self.keep`), to make room for new ones.

        Of the points to go back to, those are left that hold no more than the first `keep` tokens, and the present one.

        Returns:
            The shorter session. This session does not change.

        Raises:
            SpecjaxError: the model cannot do it, or too little would be left; the message says how much must be.
        """
        keep = self.keep if keep is None else keep
        check_can_shift(self.decoder)
        if self.memory is None:
            raise SpecjaxError("the session holds no tokens yet that could be dropped; let it generate first")
        if keep < 0 or drop < 1:
            raise SpecjaxError(f"keep is {keep} and drop is {drop}; keep must be at least 0, and drop at least 1")
        left, least = len(self.tokens) - keep - drop, self.memory.limits.least_left
        if left < least:
            raise SpecjaxError(
                f"keep={keep} and drop={drop} would leave only {max(left, 0)} of {len(self.tokens)} tokens after the"
                f" dropped ones; at least {least} must be left, because sliding layers and the drafter still read them:"
                f" drop at most {max(len(self.tokens) - keep - least, 0)}"
            )
        cut = Cut(keep, drop)
        shorter = self.memory.copy().without(cut)
        points = [*shorter.points, ReturnPoint.of(shorter.state, len(shorter.tokens))]
        return replace(
            self,
            drops=with_cut(self.drops, cut, len(self.tokens)),
            memory=replace(shorter, points=within_budget(points, self.point_bytes)),
        )

    def save(self, path: str | Path) -> None:
        """Write the session to a file, from which `Model.load_session` takes it up again.

        Raises:
            OSError: the file cannot be written.
            checkpoints.CheckpointError: the disk is full.
        """
        self.model.save_session(self, path)

    @property
    def decoder(self) -> Decoder:
        """The program that its state is made for."""
        return self.model.decoder(self.options)

    def _turn_options(self, changes: Mapping[str, Any]) -> GenerateOptions:
        """The session's options with those of one turn.

        Raises:
            ValueError: the state of the session cannot go on with them.
        """
        options = options_of(self.options, changes)
        if self.model.decoder(options).max_drafts > self.decoder.max_drafts:
            raise ValueError(
                f"draft is {options.draft!r}, but the state of this session was made for"
                f" {self.decoder.max_drafts} drafts a round; ask for at most so many, or open another session"
            )
        for name in ("rollback", "kv_type_k", "kv_type_v"):
            if (wanted := getattr(options, name)) != (own := getattr(self.options, name)):
                raise ValueError(
                    f"{name} is {wanted!r}, but the state of this session was made for {own!r}; leave it out, or open"
                    " another session"
                )
        return options

    @property
    def cut_when_full(self) -> Cut | None:
        """The tokens to drop when every slot is taken; None if that is an error."""
        if self.when_full == "error":
            return None
        return CutLimits.of(self.decoder, self.slots).after_writing(self.slots).cut_of_oldest(self.slots, self.keep)

    def _check_readable(self, length: int) -> None:
        """
        Raises:
            SpecjaxError: there is nothing to read, or the state has no room for so many tokens.
        """
        if not self.conversation:
            raise SpecjaxError("the session holds no tokens yet; let it generate or feed it something first")
        if length > self.slots:
            raise SpecjaxError(
                f"all {self.slots} slots are taken, and the last token of the conversation has none; drop tokens with"
                " `shift` first, or ask for the logits before it: logits(-2, -1)"
            )

    def _begun_reply(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """What has been said of the reply that a prompt goes on with."""
        return given[self.turns[-1].prompt :] if self.turns and given == self.conversation else ()

    def _holding(self, given: tuple[int, ...], begin: Beginning) -> Session:
        """The session with a text in its state, the last token excepted."""
        memory = extended(begin.memory, self.decoder, self.model.params, begin.rest[:-1])
        return self._after(given, (), begin.drops, memory, begin.reuse(len(begin.rest) - 1))

    def _after(
        self,
        given: tuple[int, ...],
        reply: Sequence[int],
        drops: tuple[Dropped, ...],
        memory: Memory,
        reuse: Reuse,
    ) -> Session:
        """The session after a prompt and the reply to it."""
        conversation = (*given, *reply)
        turns = turns_until(self.turns, common_prefix(self.conversation, given))
        return replace(
            self,
            conversation=conversation,
            turns=with_turn(turns, len(given), len(conversation)),
            drops=drops,
            memory=replace(memory, points=within_budget(memory.points, self.point_bytes)),
            reuse=reuse,
        )
