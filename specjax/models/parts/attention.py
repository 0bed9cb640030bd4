"""Attention of plain transformers: without gates, over all positions."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specjax.layers.linear import Linear, SummedLinear, apply_all
from specjax.layers.norm import RMSNorm
from specjax.models.parts.trunk import Call
from specjax.state.kv import KVCache
from specjax.state.rotation import apply_rope


class Attention(nn.Module):
    """Grouped-query attention with RoPE over whole heads or their first part.

    Attributes:
        config: says `width`, `num_heads`, `num_kv_heads`, `head_width`, `norm_eps`, `qk_norm` (RMS-normed q and k) and
            `attention_bias` (of q, k and v).

    Source: `Qwen3Attention`, `LlamaAttention` and `Glm4MoeAttention` in transformers.
    """

    config: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T inputs"],
        call: Call,
        cache: KVCache,
        frequencies: Float[Array | np.ndarray, "pairs"],
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values at their positions, then attend; the first dimensions rotate."""
        c, (batch, rows, _) = self.config, x.shape

        counts = {"q": c.num_heads, "k": c.num_kv_heads, "v": c.num_kv_heads}
        products = apply_all(x, *(Linear(count * c.head_width, name=f"{kind}_proj") for kind, count in counts.items()))
        if c.attention_bias:
            biases = [
                self.param(f"{kind}_bias", nn.initializers.zeros, (count * c.head_width,), jnp.float32)
                for kind, count in counts.items()
            ]
            products = [product + bias.astype(x.dtype) for product, bias in zip(products, biases, strict=True)]
        q, k, v = (product.reshape(batch, rows, -1, c.head_width) for product in products)
        if c.qk_norm:
            q, k = RMSNorm(c.norm_eps, name="q_norm")(q), RMSNorm(c.norm_eps, name="k_norm")(k)
        q, k = (apply_rope(rotated, call.positions, frequencies) for rotated in (q, k))
        cache = cache.append(k, v, call.positions, call.valid)
        out = cache.attend(q, call.positions, scale=c.head_width**-0.5)
        return SummedLinear(c.width, name="o_proj")(out.reshape(batch, rows, -1)), cache
