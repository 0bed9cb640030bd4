"""RMS normalisation, always computed in float32."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """RMSNorm with a learned weight, times silu(gate) where one is given; the result has the dtype of the input."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], gate: Float[Array, "... D"] | None = None) -> Float[Array, "... D"]:
        weight = self.param("weight", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        return rms_norm(x, weight, epsilon=self.epsilon, gate=gate).astype(x.dtype)
