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
    def queries(self) -> int:
        """Of a KV head, without those that belong to no row."""
        return self.tokens * self.per_kv_head

    @property
    def count(self) -> int:
        """How many blocks there are. The last one may have queries that belong to no row."""
        return -(-self.queries // self.size)

    def split(self, x: Shaped[Array, "B T H ..."]) -> Shaped[Array, "B G queries ..."]:
        """Rearrange values of heads by KV head. Queries that belong to no row get zeros."""
        x = x.reshape(*x.shape[:2], self.kv_heads, self.per_kv_head, *x.shape[3:])
        x = jnp.moveaxis(x, 2, 1)
        return self._padded(x.reshape(*x.shape[:2], -1, *x.shape[4:]), 2)

    def merge(self, x: Float[Array, "B G queries N"]) -> Float[Array, "B T H N"]:
        """Join the rows that `split` has cut into blocks."""
        x = x[:, :, : self.queries].reshape(*x.shape[:2], self.tokens, self.per_kv_head, -1)
        return jnp.moveaxis(x, 1, 2).reshape(x.shape[0], self.tokens, self.heads, -1)

    def positions(self, rows: Int[Array, "B T"]) -> Int[Array, "B queries"]:
        """The position of each query; -1 for queries that belong to no row."""
        return self._padded(jnp.repeat(rows.astype(jnp.int32), self.per_kv_head, axis=1) + 1, 1) - 1

    def latest(self, positions: Int[Array, "B queries"]) -> Int[Array, "B queries"]:
        """The positions, with the last one of its block for each query that has none."""
        blocks = positions.reshape(-1, self.count, self.size)
        return jnp.where(blocks < 0, jnp.max(blocks, axis=2, keepdims=True), blocks).reshape(positions.shape)

    def tiles(
        self, positions: Int[Array, "B queries"], tile: int, capacity: int, window: int | None, splits: int
    ) -> tuple[Int[Array, "B blocks splits"], Int[Array, "B blocks splits most"]]:
        """For each block how many tiles some of its queries see, and 2 i for such a tile i, in ascending order.

        It is 2 i + 1 where every query of the block sees every slot of the tile. A split has every n-th tile.
        """
        lead = positions.shape[0], self.count, splits
        positions = positions.reshape(-1, self.size)
        seen = visible_tiles(positions, tile, capacity, window)
        whole = whole_tiles(positions, tile, capacity, window)
        counts, tiles = tiles_of_splits(seen, splits)
        places = jnp.minimum(tiles, seen.shape[-1] - 1).reshape(len(seen), -1)  # none is seen beyond the last
        codes = 2 * tiles + jnp.take_along_axis(whole, places, axis=-1).reshape(tiles.shape)
        return counts.reshape(lead), codes.reshape(*lead, -1)

    def _padded(self, x: Array, axis: int) -> Array:
        missing = self.count * self.size - x.shape[axis]
        return jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)])


def tiles_of_splits(
    seen: Bool[Array, "B n"], splits: int
) -> tuple[Int[Array, "B splits"], Int[Array, "B splits most"]]:
    """For each split, which has every n-th tile: how many of them are seen, and which these are.

    Which tiles a split has does not depend on what is seen, so that a row's sums do not depend on the other rows.
    """
    batch, tiles = seen.shape
    seen = jnp.pad(seen, ((0, 0), (0, -tiles % splits))).reshape(batch, -1, splits).swapaxes(1, 2)
    index = jnp.argsort(~seen, axis=-1, stable=True).astype(jnp.int32)
    return jnp.sum(seen, axis=-1, dtype=jnp.int32), index * splits + jnp.arange(splits, dtype=jnp.int32)[:, None]


def whole_tiles(positions: Int[Array, "B R"], tile: int, capacity: int, window: int | None) -> Bool[Array, "B n"]:
    """Whether all rows of a sequence see all slots of each tile of a cache; never of one beyond the cache's end."""
    own, reach = (x[:, :, None] for x in spans(positions, capacity, window))
    first = jnp.arange(0, capacity, tile)
    last = first + tile - 1
    ends = in_span(own, reach, first, capacity) & in_span(own, reach, last, capacity)
    # A row whose own slot stands inside goes on at the other end of the cache.
    inside = (first <= own) & (own < last)
    return jnp.all(ends & ~inside, axis=1) & (last < capacity)
