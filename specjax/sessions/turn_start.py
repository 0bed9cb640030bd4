"""Where a turn of a session starts: states that were kept to go back to, and what of the caches still counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from specjax.decoding.shift import shift_context
from specjax.sessions.context_shift import Cut, Reach
from specjax.state import SequenceState


@dataclass(frozen=True)
class Snapshot:
    """What a session keeps of a state to come back to it: all but the KV caches, of which the session has the latest.

    Attributes:
        length: tokens that the state holds.
        parts: see `Part.kept`.
    """

    length: int
    parts: SequenceState = field(repr=False)

    @classmethod
    def of(cls, state: SequenceState, length: int) -> Snapshot:
        """Copies: what is decoded next consumes the state's own arrays."""
        return cls(length, state.kept())

    @property
    def num_bytes(self) -> int:
        """What it takes of the session's budget."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.parts))

    @property
    def only_length(self) -> bool:
        """Whether the state has nothing but caches and its length, and so can be cut anywhere."""
        return len(jax.tree.leaves(self.parts)) == 1

    def restored(self, state: SequenceState) -> SequenceState:
        """A state of its own: these parts, with a copy of the caches of `state`."""
        return self.parts.restored(state)


@dataclass(frozen=True)
class TurnStart:
    """Where a turn starts.

    Attributes:
        state: of one sequence, to be consumed.
        length: tokens that it holds.
        reach: how far back its caches reach.
        snapshots: states to go back to that it shares its tokens with.
    """

    state: SequenceState = field(repr=False)
    length: int
    reach: Reach
    snapshots: tuple[Snapshot, ...] = field(default=(), repr=False)

    def shifted(self, cut: Cut) -> TurnStart:
        """Without the tokens of a cut, for which enough must be left. The state is consumed."""
        keep, drop = (jnp.asarray([count], jnp.int32) for count in cut)
        return TurnStart(
            state=shift_context(self.state, keep, drop),
            length=self.length - cut.drop,
            reach=self.reach.shifted(cut),
            snapshots=tuple(snapshot for snapshot in self.snapshots if snapshot.length <= cut.keep),
        )
