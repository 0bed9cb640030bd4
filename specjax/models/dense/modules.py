"""Linen modules of plain decoder-only transformers. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.layers.rope import rope_frequencies
from specjax.models.dense.config import DenseConfig
from specjax.models.parts.plain_layer import PlainLayer
from specjax.models.parts.trunk import Trunk


class DenseTrunk(Trunk):
    """The layers of Qwen3 or Llama. What they share are the rotary frequencies."""

    config: DenseConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.head_width // 2,), jnp.float32)

    @nn.nowrap
    def make_layer(self, kind: None) -> PlainLayer:
        """A layer; all are of one kind."""
        return PlainLayer(self.config)

    def shared(self, tokens: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Float[Array | np.ndarray, "N/2"]:
        """The rotary frequencies of all layers."""
        frequencies = rope_frequencies(self.config.rope_theta, self.config.head_width)
        return frequencies / self.rope_factors if self.config.rope_factors else frequencies
