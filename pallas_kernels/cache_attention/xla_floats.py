"""Attention over caches of floats in plain XLA: products over the whole cache."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.softmax import capped, softmax
from pallas_kernels.cache_attention.visibility import as_mask
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.kv_formats.format import FloatFormat
from pallas_kernels.override import current_platform

UNSEEN = jnp.finfo(jnp.float32).min
"""The score of a slot that a row does not see. It is finite, so that a row that sees nothing does not become NaN."""

FEW_QUERIES = 64
"""At most so many query rows times heads read the cache in place on a CPU; beyond, copies are cheaper."""


def attend(call: Call) -> Array:
    """[B, T, H, N] float32. Queries and weights are rounded to the types of what they are multiplied with."""
    visible = as_mask(call.positions, call.k.shape[1], call.window)
    return attend_masked(call.q, call.k, call.v, visible, scale=call.scale, soft_cap=call.soft_cap, sinks=call.sinks)


def attend_masked(
    q: Float[Array, "B T H N"],
    k: KVStore,
    v: KVStore,
    visible: Bool[Array, "B T S"],
    *,
    scale: float,
    soft_cap: float | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H N_v"]:
    """Attention over the slots that each row sees, whichever these are; k and v are of float types. They may have
    different widths.
    """
    batch, rows, heads, width = q.shape
    kv_heads = k.shape[2]
    keys, values = _floats(k), _floats(v)
    grouped = q.reshape(batch, rows, kv_heads, heads // kv_heads, width).astype(keys.dtype)
    logits = None if sinks is None else sinks.astype(jnp.float32).reshape(kv_heads, heads // kv_heads)
    form = _in_place if rows * heads <= FEW_QUERIES and current_platform() == "cpu" else _by_head
    out = form(grouped, keys, values, visible, logits, scale=scale, soft_cap=soft_cap)
    return out.reshape(batch, rows, heads, -1)


def _floats(store: KVStore) -> Float[Array, "B S G N"]:
    kind = store.kind
    assert isinstance(kind, FloatFormat)
    return kind.floats(store.parts)


def _by_head(
    q: Float[Array, "B T G H/G N"],
    k: Float[Array, "B S G N"],
    v: Float[Array, "B S G N_v"],
    visible: Bool[Array, "B T S"],
    sinks: Float[Array, "G H/G"] | None,
    *,
    scale: float,
    soft_cap: float | None,
) -> Float[Array, "B T G H/G N_v"]:
    """One product per KV head."""
    scores = capped(jnp.einsum("btgrn,bsgn->bgrts", q, k, preferred_element_type=jnp.float32) * scale, soft_cap)
    scores = jnp.where(visible[:, None, None], scores, UNSEEN)
    weights = softmax(scores, None if sinks is None else sinks[:, :, None])
    return jnp.einsum("bgrts,bsgn->btgrn", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)


def _in_place(
    q: Float[Array, "B T G H/G N"],
    k: Float[Array, "B S G N"],
    v: Float[Array, "B S G N_v"],
    visible: Bool[Array, "B T S"],
    sinks: Float[Array, "G H/G"] | None,
    *,
    scale: float,
    soft_cap: float | None,
) -> Float[Array, "B T G H/G N_v"]:
    """One product over all KV heads at once, each query padded with zeros in the place of the heads it does not read.

    G times the arithmetic, but XLA's CPU backend copies and transposes the whole cache for one product per head, which
    costs several times more as long as queries are few.
    """
    batch, rows, kv_heads, per_kv_head, width = q.shape
    capacity, queries = k.shape[1], rows * kv_heads * per_kv_head
    own = jnp.eye(kv_heads, dtype=bool)[:, None, :, None]
    padded = jnp.where(own, q[:, :, :, :, None], 0).reshape(batch, queries, kv_heads * width)
    flat_k, flat_v = (x.reshape(batch, capacity, -1) for x in (k, v))
    # The barriers keep XLA from merging the transposes into the products and so choosing operands to copy.
    scores = jnp.einsum("bsc,bqc->bsq", flat_k, padded, preferred_element_type=jnp.float32)
    scores = jnp.swapaxes(jax.lax.optimization_barrier(scores), 1, 2).reshape(batch, rows, -1, capacity) * scale
    scores = jnp.where(visible[:, :, None], capped(scores, soft_cap), UNSEEN)
    weights = softmax(scores, None if sinks is None else sinks.reshape(-1)).astype(v.dtype)
    out = jnp.einsum(
        "bqs,bsc->bqc", weights.reshape(batch, queries, capacity), flat_v, preferred_element_type=jnp.float32
    )
    out = jax.lax.optimization_barrier(out).reshape(batch, rows, kv_heads, per_kv_head, kv_heads, -1)
    return jnp.stack([out[:, :, head, :, head] for head in range(kv_heads)], axis=2)
