"""Key and value caches of attention layers. A cache knows no length: positions come from the sequence's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import cache_attention
from pallas_kernels.kv_formats import KVStore
from specjax.state.kv_types import KVTypes
from specjax.state.shift import Shift

Rotate = Callable[[Float[Array, "B S G N"], Int[Array, "B S"]], Float[Array, "B S G N"]]
"""Turns keys by a number of positions: what stood at p as it would stand at p plus that number."""


@struct.dataclass
class KVCache:
    """Keys and values; the entry of position p stands in slot p, or in slot p mod S of a ring.

    Entries past the committed length are never read: attention masks them by position, and they are overwritten
    when the sequence gets there. So a rollback needs no work, and `commit` returns the cache as it is.

    A ring serves a layer that sees no further back than `window` positions. It has room for the window and for the
    largest call: what a call overwrites lies outside the window of each of its rows, and what was taken back lies
    ahead of every later row by less than the ring's spare room.

    Attributes:
        k, v: [B, S, G, N] in their formats; `keys` and `values` are what they stand for.
        window: how many positions a row sees, itself included; None sees all, and the cache is no ring.
    """

    k: KVStore
    v: KVStore
    window: int | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def zeros(cls, batch: int, capacity: int, kv_heads: int, width: int, types: KVTypes) -> KVCache:
        """An empty cache with a slot for each of `capacity` positions."""
        shape = (batch, capacity, kv_heads, width)
        return cls(k=KVStore.zeros(shape, types.k), v=KVStore.zeros(shape, types.v))

    @classmethod
    def ring(
        cls, batch: int, capacity: int, kv_heads: int, width: int, types: KVTypes, *, window: int, longest_call: int
    ) -> KVCache:
        """An empty ring for calls of at most `longest_call` tokens; no larger than `capacity`, where it never wraps."""
        cache = cls.zeros(batch, min(capacity, window + longest_call), kv_heads, width, types)
        return replace(cache, window=window)

    @property
    def keys(self) -> Float[Array, "B S G N"]:
        """All keys, decoded to float32."""
        return self.k.values()

    @property
    def values(self) -> Float[Array, "B S G N"]:
        """All values, decoded to float32."""
        return self.v.values()

    @property
    def capacity(self) -> int:
        """S, the number of slots."""
        return self.k.shape[1]

    def append(
        self,
        k: Float[Array, "B T G N"],
        v: Float[Array, "B T G N"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
    ) -> KVCache:
        """Encode the valid rows and write them at their positions.

        Rows that are not valid, or past the capacity, are dropped. Formats encode each vector by itself, so that what a
        row becomes does not depend on the others.
        """
        if valid.size == 1:
            # XLA's CPU backend updates the cache in place for several rows, and for a single one copies it instead,
            # several times over. The second row is dropped.
            k, v, positions = (jnp.repeat(x, 2, axis=1) for x in (k, v, positions))
            valid = valid & jnp.array([[True, False]])
        slots = jnp.where(valid, positions if self.window is None else positions % self.capacity, self.capacity)
        rows = jnp.arange(k.shape[0])[:, None]
        return replace(self, k=self.k.set((rows, slots), k), v=self.v.set((rows, slots), v))

    def visible(self, positions: Int[Array, "B T"]) -> Bool[Array, "B T S"]:
        """Which slots the rows at `positions` read: those up to the row itself, as far back as the window reaches."""
        return cache_attention.visible_slots(positions, jnp.arange(self.capacity), self.capacity, self.window)

    def attend(
        self, q: Float[Array, "B T H N"], positions: Int[Array, "B T"], *, scale: float
    ) -> Float[Array, "B T H N"]:
        """Attention of T query rows over the slots that rows at these positions see.

        The output of a row that sees nothing is finite and means nothing.
        """
        return cache_attention.attend(q, self.k, self.v, positions, scale=scale, window=self.window)

    def commit(self, n: Int[Array, "B"]) -> KVCache:
        """Nothing moves: the length, which lives with the sequence, decides what is read."""
        del n
        return self

    def shifted(self, shift: Shift, rotate: Rotate) -> KVCache:
        """The cache without the tokens that `shift` drops, each slot that moves rotated to its new position.

        Values move as they are kept, and keys that stay where they are stay as they are: nothing of them is rounded.
        Keys that move are decoded, rotated in float32 and encoded anew. In f32 that is exact but for the rotation
        itself; in every other format each shift rounds what moves once more.

        A ring that has gone round holds no tokens at the start to keep. The caller sees to it that no later row looks
        back beyond the moved ones: they must be as many as the window and what may be fed again.
        """
        slots = jnp.arange(self.capacity)
        if self.window is None:
            positions = jnp.broadcast_to(slots, self.k.shape[:2])
        else:  # each slot has the last position before the end that falls into it
            end = shift.left[:, None] - 1
            positions = end - (end - slots) % self.capacity
        before = shift.sources(positions)
        slot = jnp.minimum(before, self.capacity - 1) if self.window is None else before % self.capacity

        def moved(part: Array) -> Array:
            return jnp.take_along_axis(part, slot.reshape(*slot.shape, *(1,) * (part.ndim - 2)), axis=1)

        def where_moved(new: Array, old: Array) -> Array:
            return jnp.where((positions != before).reshape(*slot.shape, *(1,) * (new.ndim - 2)), new, old)

        keys = self.k.map(moved)
        rotated = keys.set(slice(None), rotate(keys.values(), positions - before))
        return replace(self, k=rotated.map(where_moved, keys), v=self.v.map(moved))
