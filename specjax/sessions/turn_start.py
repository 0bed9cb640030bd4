"""Where a turn of a session starts: states that were kept to go back to, and what of the caches still counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from specjax.decoding.decoder import Decoder
from specjax.decoding.shift import shift_context
from specjax.models.protocol import Params
from specjax.sessions.context_shift import Cut, Reach
from specjax.state import KVCache, SequenceState


@dataclass(frozen=True)
class Snapshot:
    """All of a state but its KV caches, which a session keeps only once.

    Attributes:
        length: tokens that the state holds.
        parts: the state with its caches emptied.
    """

    length: int
    parts: Any = field(repr=False)

    @classmethod
    def of(cls, state: SequenceState, length: int) -> Snapshot:
        """Copies: what is decoded next consumes the state's own arrays."""

        def part(node: Any) -> Any:
            return replace(node, k=(), v=()) if _is_cache(node) else jnp.copy(node)

        return cls(length, jax.tree.map(part, state, is_leaf=_is_cache))

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

        def whole(part: Any, now: Any) -> Any:
            return jax.tree.map(jnp.copy, now) if _is_cache(part) else jnp.copy(part)

        return jax.tree.map(whole, self.parts, state, is_leaf=_is_cache)


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

    def shifted(self, decoder: Decoder, params: Params, cut: Cut) -> TurnStart:
        """Without the tokens of a cut, for which enough must be left. The state is consumed."""
        keep, drop = (jnp.asarray([count], jnp.int32) for count in cut)
        return TurnStart(
            state=shift_context(decoder.target, decoder.active_drafter, params, self.state, keep, drop),
            length=self.length - cut.drop,
            reach=self.reach.shifted(cut),
            snapshots=tuple(snapshot for snapshot in self.snapshots if snapshot.length <= cut.keep),
        )


def _is_cache(node: Any) -> bool:
    return isinstance(node, KVCache)
