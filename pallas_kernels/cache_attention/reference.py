"""The law of attention over a cache: one sequence, row and head at a time, over values that are decoded first."""

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cache_attention.visibility import as_mask
from pallas_kernels.kv_formats import KVStore


def attend(
    q: Array,
    k: KVStore,
    v: KVStore,
    positions: Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Array | None,
) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    keys, values = k.values(), v.values()
    seen = as_mask(positions, k.shape[1], window)
    (batch, rows, heads, _), per_kv_head = q.shape, q.shape[2] // k.shape[2]
    out = jnp.zeros(q.shape, jnp.float32)
    for b in range(batch):
        for t in range(rows):
            for h in range(heads):
                g = h // per_kv_head
                scores = jnp.dot(keys[b, :, g], q[b, t, h].astype(jnp.float32), precision="highest") * scale
                if soft_cap is not None:
                    scores = soft_cap * jnp.tanh(scores / soft_cap)
                scores = jnp.where(seen[b, t], scores, -jnp.inf)
                scores = jnp.append(scores, -jnp.inf if sinks is None else sinks[h])
                weights = jax.nn.softmax(scores)[:-1]
                row = jnp.dot(weights, values[b, :, g], precision="highest")
                out = out.at[b, t, h].set(jnp.where(seen[b, t].any(), row, 0))
    return out
