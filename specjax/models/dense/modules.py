"""Linen modules of plain decoder-only transformers. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.models.dense.config import DenseConfig
from specjax.models.parts.attention import Attention
from specjax.models.parts.trunk import Call, Trunk
from specjax.state.kv import KVCache


class Layer(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream."""

    config: DenseConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], call: Call, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """The residual stream after the layer, and the cache with the valid rows written."""
        c = self.config
        cache = cache.rotating(call.shared) if c.rope_factors else cache
        attention = Attention(c, name="attention")
        out, cache = attention(RMSNorm(c.norm_eps, name="attn_norm")(x), call, cache, call.shared)
        x = x + out
        return x + SwiGLU(c.mlp_width, name="mlp")(RMSNorm(c.norm_eps, name="mlp_norm")(x)), cache


class DenseTrunk(Trunk):
    """The layers of Qwen3 or Llama. What they share are the rotary frequencies."""

    config: DenseConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.head_width // 2,), jnp.float32)

    @nn.nowrap
    def make_layer(self, kind: None) -> Layer:
        """A layer; all are of one kind."""
        return Layer(self.config)

    def shared(self, tokens: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Float[Array | np.ndarray, "N/2"]:
        """The rotary frequencies of all layers."""
        frequencies = rope_frequencies(self.config.rope_theta, self.config.head_width)
        return frequencies / self.rope_factors if self.config.rope_factors else frequencies
