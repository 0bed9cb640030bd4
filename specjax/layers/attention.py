"""Gated full attention of the Qwen3.5 family over a KV cache."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.linear import Linear, SummedLinear, apply_all
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.state.kv import KVCache
from specjax.state.rotation import apply_rope


class GatedAttention(nn.Module):
    """Grouped-query attention with RMS-normed q and k, partial RoPE and a sigmoid output gate per dimension.

    Attributes:
        config: says `num_heads`, `num_kv_heads`, `head_width`, `rope_width`, `rope_theta`, and `norm_eps` of q and k.

    Source: `Qwen3_5Attention` in transformers, `build_layer_attn` in llama.cpp's `src/models/qwen35.cpp`.
    """

    config: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values at their positions, then attend."""
        c, (batch, rows, width) = self.config, x.shape
        q_and_gate, k, v = apply_all(
            x,
            Linear(2 * c.num_heads * c.head_width, name="q_proj"),
            Linear(c.num_kv_heads * c.head_width, name="k_proj"),
            Linear(c.num_kv_heads * c.head_width, name="v_proj"),
        )
        q, gate = jnp.split(q_and_gate.reshape(batch, rows, c.num_heads, 2 * c.head_width), 2, axis=-1)
        kv_shape = (batch, rows, c.num_kv_heads, c.head_width)
        q = RMSNorm(c.norm_eps, name="q_norm")(q)
        k = RMSNorm(c.norm_eps, name="k_norm")(k.reshape(kv_shape))
        frequencies = rope_frequencies(c.rope_theta, c.rope_width)
        q = apply_rope(q, positions, frequencies)
        k = apply_rope(k, positions, frequencies)
        cache = cache.append(k, v.reshape(kv_shape), positions, valid)
        out = cache.attend(q, positions, scale=c.head_width**-0.5)
        out = (out * jax.nn.sigmoid(gate)).reshape(batch, rows, -1)
        return SummedLinear(width, name="o_proj")(out), cache
