"""A layer of plain transformers: attention over all positions, and a SwiGLU MLP."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.models.parts.attention import Attention
from specjax.models.parts.trunk import Call
from specjax.state.kv import KVCache


class PlainLayer(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream. What layers share are rotary frequencies.

    Attributes:
        config: see `Attention`; besides, it says `mlp_width` and `rope_factors`, whether frequencies are parameters.
    """

    config: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], call: Call, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """The residual stream after the layer, and the cache with the valid rows written."""
        c = self.config
        cache = cache.rotating(call.shared) if c.rope_factors else cache
        attention = Attention(c, name="attention")
        out, cache = attention(RMSNorm(c.norm_eps, name="attn_norm")(x), call, cache, call.shared)
        x = x + out
        return x + SwiGLU(c.mlp_width, name="mlp")(RMSNorm(c.norm_eps, name="mlp_norm")(x)), cache
