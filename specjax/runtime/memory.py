"""What is kept of a text that was computed: its state, and points before its end to go back to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import new_sequences
from specjax.decoding.shift import shift_context
from specjax.models.protocol import Params
from specjax.runtime.slots import kept_slots
from specjax.state import Cut, Ring, SequenceState, take_rows


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts share at their start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass(frozen=True)
class CutLimits:
    """How far the caches of a sequence can be cut back, and how many of its tokens can be dropped.

    Attributes:
        rows: R, tokens of a round: so many at the end may be fed again, or for the first time.
        rings: the ring buffers, which overwrite their oldest slots.
        only_caches: whether a sequence has nothing but caches and a length, so that it can be cut without a kept point.
        shortest: the shortest length, but for 0, that the sequence can be cut to. It is 0 before a ring has gone round.
    """

    rows: int
    rings: tuple[Ring, ...]
    only_caches: bool
    shortest: int = 0

    @classmethod
    def of(cls, decoder: Decoder, slots: int) -> CutLimits:
        """The limits of an empty sequence with so many slots."""
        state = jax.eval_shape(lambda: decoder.init_state(1, slots))
        kept = jax.eval_shape(lambda state: state.kept(), state)
        rings = tuple(sorted(ring for ring in state.rings if ring.slots < slots))
        return cls(decoder.rows, rings, only_caches=len(jax.tree.leaves(kept)) == 1)

    @property
    def least_left(self) -> int:
        """Tokens that must be left after the dropped ones, because rows that are still to be fed look back on them."""
        return self.rows + (max(ring.window for ring in self.rings) if self.shortest else 0)

    def after_writing(self, length: int) -> CutLimits:
        """The limits after the sequence has held so many tokens."""
        end = length + self.rows  # drafts that did not stand are among them
        return replace(self, shortest=max([self.shortest, *(ring.floor(end) for ring in self.rings)]))

    def after_cut(self, cut: Cut) -> CutLimits:
        """The limits after a cut. A ring that has gone round no longer holds what was kept at the start."""
        window = max((ring.window for ring in self.rings), default=0)
        return replace(self, shortest=max(cut.keep + window, self.shortest - cut.drop) if self.shortest else 0)

    def cut_of_oldest(self, length: int, keep: int, *, at_least: int = 1) -> Cut | None:
        """A cut of the older half of what follows the first `keep` tokens, as llama.cpp drops it.

        It is more than half if half is not `at_least` so much, and less if too little would be left. It is None if both
        cannot be.
        """
        most = length - keep - self.least_left
        drop = max(at_least, min((length - keep) // 2, most))
        return Cut(keep, drop) if drop <= most else None


@dataclass(frozen=True)
class ReturnPoint:
    """What is kept of a state to come back to it: all but the KV caches. What is written there later does no harm.

    Attributes:
        length: tokens that the state holds.
        parts: see `Part.kept`.
        logits: of the token after them, if they are at hand: then a text that ends here need not be fed.
    """

    length: int
    parts: SequenceState = field(repr=False)
    logits: Float[Array, "V"] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, state: SequenceState, length: int) -> ReturnPoint:
        """Copies what is kept, because what is decoded next consumes the state's own arrays."""
        return cls(length, state.kept())

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes of a budget."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self.parts, self.logits)))


@dataclass(frozen=True)
class Memory:
    """A text and the state after it.

    Attributes:
        tokens: what the state holds.
        state: of one sequence.
        limits: how far its caches can be cut back.
        points: where the text can be taken up again before its end, in order of length.
    """

    tokens: tuple[int, ...] = field(repr=False)
    state: SequenceState = field(repr=False)
    limits: CutLimits = field(repr=False)
    points: tuple[ReturnPoint, ...] = field(default=(), repr=False)

    @classmethod
    def empty(cls, decoder: Decoder, params: Params, slots: int) -> Memory:
        """No text, with room for so many tokens."""
        return cls((), new_sequences(decoder, params, 1, slots), CutLimits.of(decoder, slots))

    @classmethod
    def of_row(
        cls,
        sequences: SequenceState,
        row: int,
        slots: int,
        tokens: tuple[int, ...],
        limits: CutLimits,
        points: tuple[ReturnPoint, ...],
        held: int,
    ) -> Memory:
        """A copy of a row of a running state.

        Args:
            sequences: of the running state.
            row: where the text stands.
            slots: of the running state.
            tokens, limits, points: see the attributes.
            held: tokens in the row, the text's and maybe others after it.
        """
        state = take_rows(sequences, jnp.asarray([row]), kept_slots(held, slots))
        return cls(tokens, state, limits, points)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes that it takes of a budget."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.state)) + sum(each.num_bytes for each in self.points)

    def reach(self, prompt: Sequence[int], *, whole: bool = False) -> int | None:
        """The most tokens of a prompt that can be taken over, its last one excepted; None if it cannot go on from here.

        With `whole` it can be all of them, if the logits after them are known.
        """
        shared, shortest = common_prefix(self.tokens, prompt), self.limits.shortest
        usable = min(shared, len(prompt) - 1)
        lengths = [point.length for point in self.points if shortest <= point.length <= usable]
        if whole and shared == len(prompt):
            lengths += [point.length for point in self.points if point.length == shared and point.logits is not None]
        if self.limits.only_caches and usable >= shortest:
            lengths.append(usable)
        return max(lengths, default=None)

    def point_for(self, prompt: Sequence[int], *, whole: bool = False) -> ReturnPoint | None:
        """The last point from which a prompt can go on, see `reach`; None if there is none."""
        length = self.reach(prompt, whole=whole)
        if length is None:
            return None
        kept = next((point for point in self.points if point.length == length), None)
        if kept is not None:
            return kept
        return ReturnPoint.of(replace(self.state, length=jnp.full_like(self.state.length, length)), length)

    def back_at(self, point: ReturnPoint) -> Memory:
        """The text up to a point. Its state is a copy, and can be consumed."""
        return Memory(
            tokens=self.tokens[: point.length],
            state=point.parts.restored(self.state),
            limits=self.limits,
            points=tuple(other for other in self.points if other.length <= point.length),
        )

    def without(self, cut: Cut) -> Memory:
        """The text without the tokens of a cut, for which enough must be left. The state is consumed."""
        keep, drop = (jnp.asarray([count], jnp.int32) for count in cut)
        return Memory(
            tokens=cut.left_of(self.tokens),
            state=shift_context(self.state, keep, drop),
            limits=self.limits.after_cut(cut),
            points=tuple(point for point in self.points if point.length <= cut.keep),
        )

    def copy(self) -> Memory:
        """The same with a state of its own, which can be consumed."""
        return replace(self, state=jax.tree.map(jnp.copy, self.state))


def within_budget(points: Iterable[ReturnPoint], num_bytes: int) -> tuple[ReturnPoint, ...]:
    """The last points that fit into the budget together."""
    kept: list[ReturnPoint] = []
    for point in reversed(list(points)):
        num_bytes -= point.num_bytes
        if num_bytes < 0:
            break
        kept.insert(0, point)
    return tuple(kept)
