"""A conversation as a value: each turn starts from what the turns before left in the caches.

A session holds the state after its last turn. The next prompt is the whole conversation so far; what it shares with
what the session has seen is not computed again. How far back a session can go depends on the model: caches of full
attention can be cut anywhere, a ring only as far as its window still stands in it, and recurrent states, like a
drafter's waiting rows, only be taken up where a copy was kept: after each prompt and at the end of each turn.

A session that is full may drop its oldest tokens and go on. What stays is not computed again: its keys are rotated to
their new positions, and above the first layer it remembers what went before (see `specjax.state.shift`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import jax
import jax.numpy as jnp

from specjax.decoding.decoder import Decoder
from specjax.decoding.shift import obstacle
from specjax.errors import PromptError, SpecjaxError
from specjax.runtime.batch import CAPACITY_STEP, Continuation, Emission
from specjax.runtime.generation import GenerateOptions, Generation
from specjax.sessions.context_shift import DEFAULT_KEEP, Cut, Reach, WhenFull, junction
from specjax.sessions.turn_start import Snapshot, TurnStart
from specjax.state import SequenceState

if TYPE_CHECKING:
    from specjax.runtime.model import Model, Prompt

DEFAULT_SLOTS = 4096
DEFAULT_SNAPSHOT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Reuse:
    """What a turn did not have to compute.

    Attributes:
        shared: tokens at the start of the prompt that the session had seen.
        reused: tokens that were not fed again; less than `shared` where no state to go back to was kept, and where
            tokens were dropped before the rest was fed.
        fed: tokens that were.
    """

    shared: int
    reused: int
    fed: int


@dataclass(frozen=True)
class Session:
    """See `specjax.Model.session`. A turn gives a new session, and the old one stays as it was: keep it to fork.

    Attributes:
        model, options: what decodes, and how.
        slots: tokens that the state can hold.
        reach: how far back its caches reach.
        when_full: "error", or "shift" to drop the oldest tokens.
        keep: tokens at the start that are not dropped.
        snapshot_bytes: budget for states to go back to; the oldest are given up first.
        conversation: the last prompt and the reply to it, with all that was dropped.
        cuts: what was dropped of the conversation, one cut after the other.
        tokens: what the state holds of it; the last token of a reply may be missing.
        state: of one sequence; None before the first turn.
        snapshots: states to go back to, in order of length.
        reuse: what the last turn reused; None before the first.
    """

    model: Model = field(repr=False)
    options: GenerateOptions
    slots: int
    reach: Reach = field(repr=False)
    when_full: WhenFull = "error"
    keep: int = DEFAULT_KEEP
    snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES
    conversation: tuple[int, ...] = field(default=(), repr=False)
    cuts: tuple[Cut, ...] = field(default=(), repr=False)
    tokens: tuple[int, ...] = field(default=(), repr=False)
    state: SequenceState | None = field(default=None, repr=False)
    snapshots: tuple[Snapshot, ...] = field(default=(), repr=False)
    reuse: Reuse | None = None

    def generate(
        self, prompt: Prompt, max_tokens: int | None = None, observe: Callable[[Emission], None] | None = None
    ) -> tuple[Generation, Session]:
        """One turn.

        With `when_full="shift"`, whatever does not fit makes the session drop the older half of what follows the first
        `keep` tokens: before the prompt's new tokens are fed, which must fit into what is free then, and as often as
        need be while the reply is generated, whose length the session does not limit.

        Args:
            prompt: the whole conversation, as text or token ids. Tokens that have been dropped are part of it, and are
                left out again; so they are of a prompt that begins with `conversation`.
            max_tokens: tokens to emit at most, if not what the options say.
            observe: called with tokens as they become known.

        Returns:
            The generation, and the session after it. Unless something was dropped, its tokens are those of a generation
            without a session.

        Raises:
            PromptError: the prompt is empty, has ids outside the vocabulary, or leaves no room in the session.
        """
        given = tuple(self.model.encode(prompt))
        ids, cuts = self._without_dropped(given)
        start, shared = self._start(ids), _common_prefix(self.tokens, ids)
        if len(ids) >= self.slots:
            cut = self._room_for(ids, start)
            start, ids, cuts = start.shifted(cut), cut.of(ids), (*cuts, cut)
        kept = list(start.snapshots)

        def keep(state: SequenceState) -> None:
            kept.append(Snapshot.of(state, len(ids)))

        options = self.options if max_tokens is None else replace(self.options, max_tokens=max_tokens)
        stream = self.model.stream(ids, options)
        when_full = self._cut_when_full()
        stream.batch.continues = Continuation(
            start.state, start.length, self.slots, keep, when_full, dropped=len(given) - len(ids)
        )
        for emission in stream.emissions():
            if observe is not None:
                observe(emission)
        assert stream.batch.state is not None
        final, reach = stream.batch.state.sequences, start.reach
        tokens = (*ids, *stream.result.tokens)
        for _ in range(stream.batch.cuts[0]):
            assert when_full is not None
            kept = [snapshot for snapshot in kept if snapshot.length <= when_full.keep]
            reach = reach.written(self.slots).shifted(when_full)
            tokens, cuts = when_full.of(tokens), (*cuts, when_full)
        tokens = tokens[: int(final.length[0])]
        kept.append(Snapshot.of(final, len(tokens)))
        return stream.result, replace(
            self,
            conversation=(*given, *stream.result.tokens),
            cuts=cuts,
            tokens=tokens,
            state=final,
            reach=reach.written(len(tokens)),
            snapshots=self._within_budget(kept),
            reuse=Reuse(shared, start.length, len(ids) - start.length),
        )

    def shift(self, *, drop: int, keep: int | None = None) -> Session:
        """Drop `drop` tokens after the first `keep` (default: `self.keep`), so that there is room for as many more.

        Of the states to go back to, those are left that hold no more than the first `keep` tokens, and the present one.

        Returns:
            The shorter session; this one stays as it was.

        Raises:
            SpecjaxError: the model cannot do it, or too little would be left; the message says how much must be.
        """
        keep = self.keep if keep is None else keep
        check_can_shift(self._decoder)
        if self.state is None:
            raise SpecjaxError("the session holds no tokens yet that could be dropped; let it generate first")
        if keep < 0 or drop < 1:
            raise SpecjaxError(f"keep is {keep} and drop is {drop}; keep must be at least 0, and drop at least 1")
        left, least = len(self.tokens) - keep - drop, self.reach.least_left
        if left < least:
            raise SpecjaxError(
                f"of {len(self.tokens)} tokens, keep={keep} and drop={drop} would leave {max(left, 0)} after the"
                f" dropped ones; at least {least} must be left, for what the next tokens look back on in sliding layers"
                f" and drafters have yet to be fed: drop at most {max(len(self.tokens) - keep - least, 0)}"
            )
        cut = Cut(keep, drop)
        whole = TurnStart(jax.tree.map(jnp.copy, self.state), len(self.tokens), self.reach, self.snapshots)
        start = whole.shifted(cut)
        here = Snapshot.of(start.state, start.length)
        return replace(
            self,
            cuts=(*self.cuts, cut),
            tokens=cut.of(self.tokens),
            state=start.state,
            reach=start.reach,
            snapshots=self._within_budget([*start.snapshots, here]),
        )

    def save(self, path: str | Path) -> None:
        """Write the session to a file, from which `Model.load_session` takes it up again; see `save_session`.

        Raises:
            OSError: the file cannot be written.
            checkpoints.CheckpointError: the disk is full.
        """
        from specjax.sessions.session_file import save_session

        save_session(self, path)

    @property
    def _decoder(self) -> Decoder:
        return self.model.decoder(self.options)

    def _cut_when_full(self) -> Cut | None:
        """What goes when every slot is taken."""
        if self.when_full == "error":
            return None
        return Reach.of(self._decoder, self.slots).written(self.slots).oldest(self.slots, self.keep)

    def _without_dropped(self, given: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Cut, ...]]:
        """The prompt without what was dropped of the conversation, if it goes on with that, and these cuts."""
        dropped = sum(cut.drop for cut in self.cuts)
        if _common_prefix(self.conversation, given) < junction(self.cuts) + dropped:
            return given, ()
        for cut in self.cuts:
            given = cut.of(given)
        return given, self.cuts

    def _start(self, ids: tuple[int, ...]) -> TurnStart:
        """A state that holds as much of the prompt as can be had, its last token excepted."""
        usable = min(_common_prefix(self.tokens, ids), len(ids) - 1)
        for snapshot in self._ways_back(usable):
            if self.state is not None and snapshot.length >= self.reach.floor:
                older = tuple(other for other in self.snapshots if other.length <= snapshot.length)
                return TurnStart(snapshot.restored(self.state), snapshot.length, self.reach, older)
        return TurnStart(self._decoder.init_state(1, self.slots), 0, Reach.of(self._decoder, self.slots))

    def _room_for(self, ids: tuple[int, ...], start: TurnStart) -> Cut:
        """What of the start has to go, so that the prompt fits and a new token with it."""
        cut = None
        if self.when_full == "shift":
            cut = start.reach.oldest(start.length, self.keep, at_least=len(ids) - self.slots + 1)
        if cut is None:
            fewer = (
                f"; {start.length} of them are in its caches, and dropping of these cannot make room for the others"
                if self.when_full == "shift"
                else ""
            )
            raise PromptError(
                f"the prompt has {len(ids)} tokens, and the session has room for {self.slots}, of which a new token"
                f" needs one{fewer}; shorten it, or open a session with more slots"
            )
        return cut

    def _ways_back(self, usable: int) -> Iterator[Snapshot]:
        """Lengths up to `usable` that the state can be taken back to, the longest first."""
        if self.state is None:
            return
        cut_short = Snapshot.of(replace(self.state, length=jnp.full_like(self.state.length, usable)), usable)
        if cut_short.only_length:
            yield cut_short
        yield from sorted(
            (snapshot for snapshot in self.snapshots if snapshot.length <= usable),
            key=lambda snapshot: -snapshot.length,
        )

    def _within_budget(self, snapshots: list[Snapshot]) -> tuple[Snapshot, ...]:
        """As many of the newest as fit."""
        kept: list[Snapshot] = []
        total = 0
        for snapshot in reversed(snapshots):
            total += snapshot.num_bytes
            if total > self.snapshot_bytes:
                break
            kept.insert(0, snapshot)
        return tuple(kept)


def check_can_shift(decoder: Decoder) -> None:
    """Raise `SpecjaxError` if a state of these models cannot drop tokens."""
    reason = obstacle(decoder)
    if reason is not None:
        raise SpecjaxError(f"this model cannot drop the oldest tokens of a conversation: {reason}")


def open_session(
    model: Model, options: GenerateOptions, slots: int | None, when_full: WhenFull = "error", keep: int = DEFAULT_KEEP
) -> Session:
    """An empty session; `slots` is rounded up to a step that shares compiled programs."""
    slots = min(model.target.context_length, DEFAULT_SLOTS) if slots is None else slots
    if not 1 < slots <= model.target.context_length:
        raise ValueError(f"slots is {slots}; give 2 to {model.target.context_length}, the model's context")
    if when_full not in get_args(WhenFull):
        raise ValueError(f"when_full is {when_full!r}; known are {', '.join(map(repr, get_args(WhenFull)))}")
    if keep < 0:
        raise ValueError(f"keep is {keep}; it must be at least 0")
    decoder = model.decoder(options)  # says what is wrong with the options
    rounded = min(-(-slots // CAPACITY_STEP) * CAPACITY_STEP, model.target.context_length)
    session = Session(model, options, rounded, Reach.of(decoder, rounded), when_full, keep)
    if when_full == "shift":
        check_can_shift(decoder)
        if session._cut_when_full() is None:
            least = session.reach.written(rounded).least_left
            raise ValueError(
                f"of {rounded} slots, keep={keep} and the {least} tokens that must be left after dropped ones leave"
                " nothing to drop; keep less, or give more slots"
            )
    return session


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
