"""The law of attention over a cache: one sequence, row and head at a time, over values that are decoded first."""

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.visibility import as_mask


def attend(call: Call) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    q, soft_cap, keys, values = call.q.astype(jnp.float32), call.soft_cap, call.k.values(), call.v.values()
    seen = as_mask(call.positions, keys.shape[1], call.window)
    batch, rows, heads, _ = q.shape
    out = jnp.zeros(q.shape)
    for b in range(batch):
        for t in range(rows):
            for h in range(heads):
                g = h // call.per_kv_head
                scores = jnp.dot(keys[b, :, g], q[b, t, h], precision="highest") * call.scale
                if soft_cap is not None:
                    scores = soft_cap * jnp.tanh(scores / soft_cap)
                scores = jnp.where(seen[b, t], scores, -jnp.inf)
                scores = jnp.append(scores, call.logits()[h])
                weights = jax.nn.softmax(scores)[:-1]
                row = jnp.dot(weights, values[b, :, g], precision="highest")
                out = out.at[b, t, h].set(jnp.where(seen[b, t].any(), row, 0))
    return out
