"""A conversation as a value. Each turn starts from the caches of the turns before.

A session holds the state after its last turn. The next prompt is the whole conversation so far; what it shares with
what the session has seen is not computed again. How far back a session can go depends on the model: caches of full
attention can be cut anywhere, a ring only as far as its window still stands in it, and recurrent states, like a
drafter's waiting rows, only be taken up where a copy was kept: after each prompt and at the end of each turn.

A full session may drop its oldest tokens and go on. The other tokens are not computed again: their keys are rotated to
the new positions. Above the first layer they still carry something of the dropped tokens (see `specjax.state.shift`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from specjax.decoding.decoder import Decoder
from specjax.decoding.shift import cannot_shift
from specjax.errors import PromptError, SpecjaxError
from specjax.runtime.generation import Generation
from specjax.runtime.memory import CutLimits, Memory, ReturnPoint, common_prefix, within_budget
from specjax.runtime.options import GenerateOptions, OptionChanges, options_of, takes_options
from specjax.runtime.prompts import Prompt, check_prompts
from specjax.runtime.request import Start, Update
from specjax.runtime.stream import generation_of
from specjax.sessions.context_shift import DEFAULT_KEEP, WhenFull, contiguous_from
from specjax.state import Cut

if TYPE_CHECKING:
    from specjax.runtime.model import Model

DEFAULT_SLOTS = 4096
DEFAULT_POINT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Reuse:
    """How many tokens a turn took from the session, and how many it computed.

    Attributes:
        shared: tokens at the start of the prompt that are equal to those the session has seen.
        reused: tokens that were not computed again. There are fewer than `shared` if the session has kept no state at
            that place, or has dropped tokens first.
        fed: tokens of the prompt that were computed.
    """

    shared: int
    reused: int
    fed: int


@dataclass(frozen=True)
class Session:
    """A conversation, made by `specjax.Model.session`. A turn returns a new session. The old one does not change, so
    keeping it is a fork.

    Attributes:
        model, options: the model, and the options of every turn.
        slots: how many tokens the state can hold.
        when_full: what happens when the slots are full: "error", or "shift" to drop the oldest tokens.
        keep: how many tokens at the start are never dropped.
        point_bytes: budget for points to go back to; the oldest are given up first.
        conversation: the last prompt and the reply to it, including all tokens that were dropped.
        cuts: which tokens were dropped from the conversation, in order of time.
        memory: what the state holds of it; the last token of a reply may be missing. None before the first turn.
        reuse: how much the last turn took from the session; None before the first turn.
    """

    model: Model = field(repr=False)
    options: GenerateOptions
    slots: int
    when_full: WhenFull = "error"
    keep: int = DEFAULT_KEEP
    point_bytes: int = DEFAULT_POINT_BYTES
    conversation: tuple[int, ...] = field(default=(), repr=False)
    cuts: tuple[Cut, ...] = field(default=(), repr=False)
    memory: Memory | None = field(default=None, repr=False)
    reuse: Reuse | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the state holds of the conversation."""
        return () if self.memory is None else self.memory.tokens

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
            observe: called with tokens as they become known.
            changes: other options for this turn: `chat.generate(prompt, max_tokens=20, seed=2)`. What the state was
                made for stays: the caches' types, and the most drafts of a round.

        Returns:
            The generation, and the session after it. Unless something was dropped, its tokens are those of a generation
            without a session.

        Raises:
            PromptError: the prompt is empty, has ids outside the vocabulary, or leaves no room in the session.
        """
        options = self._turn_options(changes)
        given = tuple(self.model.encode(prompt))
        ids, cuts = self._without_dropped(given)
        begin, shared = self._resumed(ids), common_prefix(self.tokens, ids)
        if len(ids) >= self.slots:
            cut = self._room_for(ids, begin)
            begin, ids, cuts = begin.without(cut), cut.left_of(ids), (*cuts, cut)
        check_prompts(self.model.target, [ids])
        points = list(begin.points)
        start = Start(
            begin.state,
            len(begin.tokens),
            dropped=len(given) - len(ids),
            prefilled=lambda state: points.append(ReturnPoint.of(state, len(ids))),
        )
        when_full = self._cut_when_full()
        engine = self.model.engine([options, self._state_options(options)], seats=1, slots=self.slots)
        job = engine.submit(self.model.request(ids, options, start=start, when_full=when_full))
        for update in engine.run():
            if observe is not None:
                observe(update)
        generation, state = generation_of(self.model, job, options), engine.state.sequences
        tokens, limits = (*ids, *generation.tokens), begin.limits
        for _ in range(job.cuts):
            assert when_full is not None
            points = [point for point in points if point.length <= when_full.keep]
            limits = limits.after_writing(self.slots).after_cut(when_full)
            tokens, cuts = when_full.left_of(tokens), (*cuts, when_full)
        tokens = tokens[: int(state.length[0])]
        points.append(ReturnPoint.of(state, len(tokens)))
        return generation, replace(
            self,
            conversation=(*given, *generation.tokens),
            cuts=cuts,
            memory=Memory(tokens, state, limits.after_writing(len(tokens)), within_budget(points, self.point_bytes)),
            reuse=Reuse(shared, len(begin.tokens), len(ids) - len(begin.tokens)),
        )

    def shift(self, *, drop: int, keep: int | None = None) -> Session:
        """Drop `drop` tokens after the first `keep` (default: `self.keep`), to make room for new ones.

        Of the points to go back to, those are left that hold no more than the first `keep` tokens, and the present one.

        Returns:
            The shorter session. This session does not change.

        Raises:
            SpecjaxError: the model cannot do it, or too little would be left; the message says how much must be.
        """
        keep = self.keep if keep is None else keep
        check_can_shift(self._decoder)
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
            cuts=(*self.cuts, cut),
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
    def _decoder(self) -> Decoder:
        return self.model.decoder(self.options)

    def _turn_options(self, changes: Mapping[str, Any]) -> GenerateOptions:
        """The session's options with those of one turn.

        Raises:
            ValueError: the state of the session cannot go on with them.
        """
        options = options_of(self.options, changes)
        if self.model.decoder(options).max_drafts > self._decoder.max_drafts:
            raise ValueError(
                f"draft is {options.draft!r}, but the state of this session was made for"
                f" {self._decoder.max_drafts} drafts a round; ask for at most so many, or open another session"
            )
        return options

    def _state_options(self, turn: GenerateOptions) -> GenerateOptions:
        """Those of a turn that are no part of the state, with those of the session that are."""
        return replace(
            turn,
            draft=self.options.draft,
            rollback=self.options.rollback,
            kv_type_k=self.options.kv_type_k,
            kv_type_v=self.options.kv_type_v,
        )

    def _cut_when_full(self) -> Cut | None:
        """The tokens to drop when every slot is taken; None if that is an error."""
        if self.when_full == "error":
            return None
        return CutLimits.of(self._decoder, self.slots).after_writing(self.slots).cut_of_oldest(self.slots, self.keep)

    def _without_dropped(self, given: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Cut, ...]]:
        """The prompt without the tokens that were dropped, and the cuts that dropped them. If the prompt does not
        continue the conversation, it is returned as it is, with no cuts.
        """
        dropped = sum(cut.drop for cut in self.cuts)
        if common_prefix(self.conversation, given) < contiguous_from(self.cuts) + dropped:
            return given, ()
        for cut in self.cuts:
            given = cut.left_of(given)
        return given, self.cuts

    def _resumed(self, ids: tuple[int, ...]) -> Memory:
        """As much of the prompt as can be had without feeding it, its last token excepted. The state is a copy."""
        if self.memory is not None and (point := self.memory.point_for(ids)) is not None:
            return self.memory.back_at(point)
        return Memory.empty(self._decoder, self.slots)

    def _room_for(self, ids: tuple[int, ...], begin: Memory) -> Cut:
        """What of the beginning has to go, so that the prompt fits and a new token with it."""
        cut, held = None, len(begin.tokens)
        if self.when_full == "shift":
            cut = begin.limits.cut_of_oldest(held, self.keep, at_least=len(ids) - self.slots + 1)
        if cut is None:
            fewer = (
                f"; {held} of them are in its caches, and dropping of these cannot make room for the others"
                if self.when_full == "shift"
                else ""
            )
            raise PromptError(
                f"the prompt has {len(ids)} tokens, but the session has room for {self.slots}, of which a new token"
                f" needs one{fewer}; shorten the prompt, or open a session with more slots"
            )
        return cut


def check_can_shift(decoder: Decoder) -> None:
    """Raise `SpecjaxError` if a state of these models cannot drop tokens."""
    reason = cannot_shift(decoder)
    if reason is not None:
        raise SpecjaxError(f"this model cannot drop the oldest tokens of a conversation: {reason}")


def open_session(
    model: Model, options: GenerateOptions, slots: int | None, when_full: WhenFull = "error", keep: int = DEFAULT_KEEP
) -> Session:
    """A session without tokens; errors as in `Model.session`."""
    slots = min(model.target.context_length, DEFAULT_SLOTS) if slots is None else slots
    if not 1 < slots <= model.target.context_length:
        raise ValueError(f"slots is {slots}; give 2 to {model.target.context_length}, the model's context")
    if when_full not in get_args(WhenFull):
        raise ValueError(f"when_full is {when_full!r}; known are {', '.join(map(repr, get_args(WhenFull)))}")
    if keep < 0:
        raise ValueError(f"keep is {keep}; it must be at least 0")
    decoder = model.decoder(options)  # says what is wrong with the options
    session = Session(model, options, slots, when_full, keep)
    if when_full == "shift":
        check_can_shift(decoder)
        if session._cut_when_full() is None:
            least = CutLimits.of(decoder, slots).after_writing(slots).least_left
            raise ValueError(
                f"keep={keep} and the {least} newest tokens, which must be left, fill all {slots} slots, so that there"
                " is nothing to drop; keep fewer tokens, or give more slots"
            )
    return session
