"""Key and value caches of attention layers. A cache knows no length: positions come from the sequence's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import cache_attention
from pallas_kernels.kv_formats import KVStore
from specjax.state.content import Content
from specjax.state.kv_types import KVTypes
from specjax.state.part import Part, Ring
from specjax.state.rotation import apply_rope
from specjax.state.shift import Shift

Frequencies = Float[Array | np.ndarray, "pairs"] | Sequence[float]
"""Radians per position of each pair of dimensions, see `apply_rope`."""


@struct.dataclass
class KVCache(Part):
    """Keys and values; the entry of position p stands in slot p, or in slot p mod S of a ring.

    Entries past the committed length are never read: attention masks them by position, and they are overwritten
    when the sequence gets there. So a rollback needs no work, and `commit` returns the cache as it is.

    A ring serves a layer that sees no further back than `window` positions. It has room for the window and for the
    largest call: what a call overwrites lies outside the window of each of its rows, and what was taken back lies
    ahead of every later row by less than the ring's spare room.

    Attributes:
        k, v: [B, S, G, N] in their formats; `keys` and `values` are what they stand for.
        frequencies: by which the keys were rotated, so that they can be moved; no pairs: they were not.
        window: how many positions a row sees, itself included; None sees all, and the cache is no ring.
    """

    k: KVStore
    v: KVStore
    frequencies: Float[Array, "B pairs"]
    window: int | None = struct.field(pytree_node=False, default=None)

    @classmethod
    def zeros(
        cls, batch: int, capacity: int, kv_heads: int, width: int, types: KVTypes, frequencies: Frequencies = ()
    ) -> KVCache:
        """An empty cache with a slot for each of `capacity` positions."""
        shape, turning = (batch, capacity, kv_heads, width), jnp.asarray(frequencies, jnp.float32)
        return cls(
            k=KVStore.zeros(shape, types.k),
            v=KVStore.zeros(shape, types.v),
            frequencies=jnp.tile(turning, (batch, 1)),
        )

    @classmethod
    def ring(
        cls,
        batch: int,
        capacity: int,
        kv_heads: int,
        width: int,
        types: KVTypes,
        frequencies: Frequencies = (),
        *,
        window: int,
        longest_call: int,
    ) -> KVCache:
        """An empty ring for calls of at most `longest_call` tokens; no larger than `capacity`, where it never wraps."""
        cache = cls.zeros(batch, min(capacity, window + longest_call), kv_heads, width, types, frequencies)
        return replace(cache, window=window)

    def rotating(self, frequencies: Float[Array | np.ndarray, "pairs"]) -> KVCache:
        """The cache of a layer whose frequencies are parameters, and therefore not known before it runs."""
        return replace(self, frequencies=jnp.broadcast_to(frequencies, self.frequencies.shape))

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

        Rows that are not valid, or past the capacity, are dropped. A format encodes each vector by itself, so a row
        does not depend on the others.
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

    def continued(self, later: KVCache) -> KVCache:
        """The later cache: it has room for the trial, so no copy is made."""
        return later

    @property
    def limit(self) -> int | None:
        """Its slots. What is written past them is lost; a ring overwrites what no row sees any more."""
        return self.capacity if self.window is None else None

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Itself, if it is a ring."""
        return () if self.window is None else (Ring(self.capacity, self.window),)

    def used(self, slots: int) -> KVCache:
        """The first slots; of a ring all, which may be in use at any length."""
        if self.window is not None:
            return self
        return replace(self, k=self.k.map(lambda x: x[:, :slots]), v=self.v.map(lambda x: x[:, :slots]))

    def kept(self) -> KVCache:
        """Nothing: what has been written stays where it is."""
        return jax.tree.map(lambda _: (), self)

    def restored(self, now: KVCache) -> KVCache:
        """A copy of the cache of now: what it has past the sequence's length is not read."""
        return jax.tree.map(jnp.copy, now)

    def put(self, rows_state: KVCache, rows: Int[Array, "n"]) -> KVCache:
        """As many slots as both have; zeros in the others.

        A kernel may multiply what rows without a token see with a weight of zero, which a NaN would survive.
        """
        more = self.capacity - rows_state.capacity

        def put(old: Array, new: Array) -> Array:
            new = new[:, : self.capacity]
            padded = jnp.pad(new, [(0, 0), (0, max(more, 0)), *[(0, 0)] * (new.ndim - 2)])
            return old.at[rows].set(padded, mode="drop")

        return replace(
            self,
            k=self.k.map(put, rows_state.k),
            v=self.v.map(put, rows_state.v),
            frequencies=self.frequencies.at[rows].set(rows_state.frequencies, mode="drop"),
        )

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """Keys and values of the positions that the token at `length` sees: of a ring, of those in its window."""
        first = 0 if self.window is None else max(0, length - self.window + 1)
        last = length if self.window is not None else min(length, self.capacity)
        positions = np.arange(first, max(first, last))
        slots = positions % self.capacity
        # All slots are decoded: arrays of one size, whatever the length is, are one program.
        rows = (
            (name, np.asarray(store.map(lambda x: x[row]).values()))
            for name, store in (("keys", self.k), ("values", self.v))
        )
        return tuple(Content((name,), positions, decoded[slots], slots, has_heads=True) for name, decoded in rows)

    @property
    def cannot_shift(self) -> None:
        """Nothing is in the way: keys are rotated to their new positions."""
        return None

    def shift(self, shift: Shift) -> KVCache:
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
        turned = apply_rope(keys.values(), positions - before, self.frequencies[:, None])
        rotated = keys.set(slice(None), turned)
        return replace(self, k=rotated.map(where_moved, keys), v=self.v.map(moved))
