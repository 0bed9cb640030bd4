"""Attention over caches of any formats in plain XLA: decode a tile of slots, add it up, go on to the next.

Softmax is that of Milakov and Gimelshein, arXiv 1805.02867: sums are kept relative to the largest score so far. Tiles
that no row sees are not read.
"""

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.softmax import capped
from pallas_kernels.cache_attention.visibility import slots_in_use, visible_slots
from pallas_kernels.kv_formats import KVStore

TILE = 256
"""Slots decoded at a time."""


def attend(call: Call) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    (batch, rows, heads, width), (_, capacity, kv_heads, _) = call.q.shape, call.k.shape
    tile = min(TILE, capacity)
    grouped = call.rotated_queries().reshape(batch, rows, kv_heads, call.per_kv_head, -1)

    def one_tile(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, sums = carry
        start = jnp.minimum(index * tile, capacity - tile)
        slots = start + jnp.arange(tile)
        keys, values = (_tile(store, start, tile) for store in (call.k, call.v))
        # The last tile may begin in the one before.
        seen = visible_slots(call.positions, slots, capacity, call.window) & (slots >= index * tile)
        seen = seen[:, None, None]
        scores = jnp.einsum("btgrn,bsgn->bgrts", grouped, keys, preferred_element_type=jnp.float32)
        scores = capped(scores * call.scale, call.soft_cap)
        now = jnp.maximum(highest, jnp.max(jnp.where(seen, scores, -jnp.inf), axis=-1))
        base = jnp.where(jnp.isneginf(now), 0, now)
        weights = jnp.where(seen, jnp.exp(scores - base[..., None]), 0)
        fade = jnp.exp(highest - base)
        added = jnp.einsum("bgrts,bsgn->bgrtn", weights, values, preferred_element_type=jnp.float32)
        return now, total * fade + jnp.sum(weights, axis=-1), sums * fade[..., None] + added

    lead = (batch, kv_heads, call.per_kv_head, rows)
    logits = jnp.broadcast_to(call.logits().reshape(kv_heads, -1, 1), lead)  # scores without values
    start = (
        logits,
        jnp.where(jnp.isneginf(logits), 0.0, 1.0),
        jnp.zeros((*lead, call.v.kind.stored_width(width)), jnp.float32),
    )
    tiles = (slots_in_use(call.positions, capacity) + tile - 1) // tile
    _, total, sums = lax.fori_loop(0, tiles, one_tile, start)
    out = sums / jnp.where(total == 0, 1, total)[..., None]
    out = call.v.kind.unrotate(jnp.moveaxis(out, 3, 1), width)
    return out.reshape(batch, rows, heads, width)


def _tile(store: KVStore, start: Array, size: int) -> Array:
    return store.map(lambda part: lax.dynamic_slice_in_dim(part, start, size, axis=1)).rotated()
