"""Gated full attention of the Qwen3.5 family over a KV cache."""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.linear import Linear
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import apply_rope, rope_frequencies
from specjax.state.kv import KVCache

UNSEEN = jnp.finfo(jnp.float32).min
"""The score of a slot that a row does not see. It is finite, so that a row that sees nothing does not become NaN."""

FEW_QUERIES = 64
"""At most so many query rows times heads read the cache in place on a CPU; beyond, copies are cheaper."""


def attend(
    q: Float[Array, "B T H N"], cache: KVCache, visible: Bool[Array, "B T S"], *, scale: float
) -> Float[Array, "B T H N"]:
    """Attention of T query rows over the slots of the cache that each row sees.

    Scores and softmax are float32. Query head h reads KV head h // (H / G). The output of a row that sees nothing is
    finite and means nothing.
    """
    batch, rows, heads, width = q.shape
    kv_heads = cache.k.shape[2]
    grouped = q.reshape(batch, rows, kv_heads, heads // kv_heads, width).astype(cache.k.dtype)
    if rows * heads <= FEW_QUERIES:
        out = jax.lax.platform_dependent(
            grouped, cache.k, cache.v, visible, cpu=partial(_in_place, scale), default=partial(_by_head, scale)
        )
    else:
        out = _by_head(scale, grouped, cache.k, cache.v, visible)
    return out.reshape(batch, rows, heads, width).astype(q.dtype)


def _by_head(
    scale: float,
    q: Float[Array, "B T G H/G N"],
    k: Float[Array, "B S G N"],
    v: Float[Array, "B S G N"],
    visible: Bool[Array, "B T S"],
) -> Float[Array, "B T G H/G N"]:
    """One product per KV head."""
    scores = jnp.einsum("btgrn,bsgn->bgrts", q, k, preferred_element_type=jnp.float32) * scale
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, UNSEEN), axis=-1)
    return jnp.einsum("bgrts,bsgn->btgrn", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)


def _in_place(
    scale: float,
    q: Float[Array, "B T G H/G N"],
    k: Float[Array, "B S G N"],
    v: Float[Array, "B S G N"],
    visible: Bool[Array, "B T S"],
) -> Float[Array, "B T G H/G N"]:
    """One product over all KV heads at once, each query padded with zeros in the place of the heads it does not read.

    G times the arithmetic, but XLA's CPU backend copies and transposes the whole cache for one product per head, which
    costs several times more as long as queries are few.
    """
    batch, rows, kv_heads, per_kv_head, width = q.shape
    capacity, queries = k.shape[1], rows * kv_heads * per_kv_head
    own = jnp.eye(kv_heads, dtype=bool)[:, None, :, None]
    padded = jnp.where(own, q[:, :, :, :, None], 0).reshape(batch, queries, kv_heads * width)
    flat_k, flat_v = (x.reshape(batch, capacity, kv_heads * width) for x in (k, v))
    # The barriers keep XLA from merging the transposes into the products and so choosing operands to copy.
    scores = jnp.einsum("bsc,bqc->bsq", flat_k, padded, preferred_element_type=jnp.float32)
    scores = jnp.swapaxes(jax.lax.optimization_barrier(scores), 1, 2).reshape(batch, rows, -1, capacity) * scale
    weights = jax.nn.softmax(jnp.where(visible[:, :, None], scores, UNSEEN), axis=-1).astype(v.dtype)
    out = jnp.einsum(
        "bqs,bsc->bqc", weights.reshape(batch, queries, capacity), flat_v, preferred_element_type=jnp.float32
    )
    out = jax.lax.optimization_barrier(out).reshape(batch, rows, kv_heads, per_kv_head, kv_heads, width)
    return jnp.stack([out[:, :, head, :, head] for head in range(kv_heads)], axis=2)


class GatedAttention(nn.Module):
    """Grouped-query attention with RMS-normed q and k, partial RoPE and a sigmoid output gate per dimension.

    Attributes:
        num_heads, num_kv_heads, head_width: H, G, N.
        rope_width, rope_theta: how many dimensions rotate, and the base of their frequencies.
        norm_eps: epsilon of the q and k norms.

    Source: `Qwen3_5Attention` in transformers, `build_layer_attn` in llama.cpp's `src/models/qwen35.cpp`.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    rope_width: int
    rope_theta: float
    norm_eps: float

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values at their positions, then attend."""
        batch, rows, width = x.shape
        q_and_gate = Linear(2 * self.num_heads * self.head_width, name="q_proj")(x)
        q, gate = jnp.split(q_and_gate.reshape(batch, rows, self.num_heads, 2 * self.head_width), 2, axis=-1)
        k = Linear(self.num_kv_heads * self.head_width, name="k_proj")(x)
        v = Linear(self.num_kv_heads * self.head_width, name="v_proj")(x)
        kv_shape = (batch, rows, self.num_kv_heads, self.head_width)
        q = RMSNorm(self.norm_eps, name="q_norm")(q)
        k = RMSNorm(self.norm_eps, name="k_norm")(k.reshape(kv_shape))
        frequencies = rope_frequencies(self.rope_theta, self.rope_width)
        q = apply_rope(q, positions, frequencies)
        k = apply_rope(k, positions, frequencies)
        cache = cache.append(k, v.reshape(kv_shape), positions, valid)
        out = attend(q, cache, cache.visible(positions), scale=self.head_width**-0.5)
        out = (out * jax.nn.sigmoid(gate)).reshape(batch, rows, -1)
        return Linear(width, name="o_proj")(out), cache
