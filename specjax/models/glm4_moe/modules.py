"""Linen modules of GLM-4.5. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array, Float

from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.parts.attention import Attention
from specjax.models.parts.moe import SigmoidMoE
from specjax.models.parts.trunk import Call, Trunk
from specjax.state.kv import KVCache


class Layer(nn.Module):
    """Attention and a dense MLP or experts; with experts also the block of the MTP head."""

    config: Glm4MoeConfig
    sparse: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], call: Call, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """The residual stream after the layer, and the cache with the valid rows written."""
        c = self.config
        frequencies, attention = rope_frequencies(c.rope_theta, c.rope_width), Attention(c, name="attention")
        out, cache = attention(RMSNorm(c.norm_eps, name="attn_norm")(x), call, cache, frequencies)
        x = x + out
        normed = RMSNorm(c.norm_eps, name="mlp_norm")(x)
        mlp = SigmoidMoE(c.moe, name="moe") if self.sparse else SwiGLU(c.mlp_width, name="mlp")
        return x + mlp(normed), cache


class Glm4MoeTrunk(Trunk):
    """The layers of GLM-4.5, dense ones first."""

    config: Glm4MoeConfig

    @nn.nowrap
    def make_layer(self, kind: bool) -> Layer:
        """A layer, with experts or without."""
        return Layer(self.config, sparse=kind)
