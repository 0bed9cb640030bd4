"""The law of attention over a cache: one sequence, row and head at a time, over values that are decoded first."""

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.visibility import as_mask


def attend(call: Call) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    keys, values = (jnp.repeat(store.values(), call.per_kv_head, axis=2) for store in (call.k, call.v))

    def of_head(q: Array, seen: Array, keys: Array, values: Array, logit: Array) -> Array:
        """[N] for a query [N] of one head, whether it sees each slot [S], and keys and values [S, N]."""
        scores = jnp.dot(keys, q, precision="highest") * call.scale
        if call.soft_cap is not None:
            scores = call.soft_cap * jnp.tanh(scores / call.soft_cap)
        weights = jax.nn.softmax(jnp.append(jnp.where(seen, scores, -jnp.inf), logit))[:-1]
        return jnp.where(seen.any(), jnp.dot(weights, values, precision="highest"), 0)

    of_row = jax.vmap(of_head, (0, None, 1, 1, 0))
    of_sequence = jax.vmap(of_row, (0, 0, None, None, None))
    of_batch = jax.vmap(of_sequence, (0, 0, 0, 0, None))
    seen = as_mask(call.positions, keys.shape[1], call.window)
    return of_batch(call.q.astype(jnp.float32), seen, keys, values, call.logits())
