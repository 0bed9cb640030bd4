"""Blocks of queries of a KV head, and the tiles of a cache that each of them reads."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from pallas_kernels.cache_attention.visibility import in_span, spans, visible_tiles


@dataclass(frozen=True)
class Blocks:
    """T rows of H heads as blocks of R queries of G KV heads: tokens in order, and of each the heads of a KV head.

    Attributes:
        tokens, heads, kv_heads: T, H and G.
        size: R.
    """

    tokens: int
    heads: int
    kv_heads: int
    size: int

    @property
    def per_kv_head(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads

    @property
    def count(self) -> int:
        """How many blocks there are. The last one may have queries that belong to no row."""
        return -(-self.tokens * self.per_kv_head // self.size)

    def split(self, x: Shaped[Array, "B T H ..."]) -> Shaped[Array, "B G queries ..."]:
        """Rearrange values of heads by KV head. Queries that belong to no row get zeros."""
        x = x.reshape(*x.shape[:2], self.kv_heads, self.per_kv_head, *x.shape[3:])
        x = jnp.moveaxis(x, 2, 1)
        return self._padded(x.reshape(*x.shape[:2], -1, *x.shape[4:]), 2)

    def merge(self, x: Float[Array, "B G queries N"]) -> Float[Array, "B T H N"]:
        """Join the rows that `split` has cut into blocks."""
        x = x[:, :, : self.tokens * self.per_kv_head].reshape(*x.shape[:2], self.tokens, self.per_kv_head, -1)
        return jnp.moveaxis(x, 1, 2).reshape(x.shape[0], self.tokens, self.heads, -1)

    def positions(self, rows: Int[Array, "B T"]) -> Int[Array, "B queries"]:
        """The position of each query; -1 for queries that belong to no row."""
        return self._padded(jnp.repeat(rows.astype(jnp.int32), self.per_kv_head, axis=1) + 1, 1) - 1

    def tiles(
        self, positions: Int[Array, "B queries"], tile: int, capacity: int, window: int | None
    ) -> tuple[Int[Array, "B blocks"], Int[Array, "B blocks most"]]:
        """For each block how many tiles some of its queries see, and 2 i for such a tile i, in ascending order.

        It is 2 i + 1 where every query of the block sees every slot of the tile.
        """
        batch = positions.shape[0]
        positions = positions.reshape(-1, self.size)
        seen = visible_tiles(positions, tile, capacity, window)
        order = jnp.argsort(~seen, axis=-1, stable=True).astype(jnp.int32)
        whole = jnp.take_along_axis(whole_tiles(positions, tile, capacity, window), order, axis=-1)
        counts = jnp.sum(seen, axis=-1, dtype=jnp.int32)
        return counts.reshape(batch, -1), (2 * order + whole).reshape(batch, self.count, -1)

    def _padded(self, x: Array, axis: int) -> Array:
        missing = self.count * self.size - x.shape[axis]
        return jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)])


def whole_tiles(positions: Int[Array, "B R"], tile: int, capacity: int, window: int | None) -> Bool[Array, "B n"]:
    """Whether all rows of a sequence see all slots of each tile of a cache; never of one beyond the cache's end."""
    own, reach = (x[:, :, None] for x in spans(positions, capacity, window))
    first = jnp.arange(0, capacity, tile)
    last = first + tile - 1
    ends = in_span(own, reach, first, capacity) & in_span(own, reach, last, capacity)
    # A row whose own slot stands inside goes on at the other end of the cache.
    inside = (first <= own) & (own < last)
    return jnp.all(ends & ~inside, axis=1) & (last < capacity)
