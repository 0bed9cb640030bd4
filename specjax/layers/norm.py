"""RMS normalisation, always computed in float32."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_normalize(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + epsilon) over the last axis, in float32.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
    """
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon)


def l2_normalize(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """x / sqrt(sum(x^2) + epsilon) over the last axis, in float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + epsilon)


class RMSNorm(nn.Module):
    """RMSNorm with a learned weight; the result has the dtype of the input."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        weight = self.param("weight", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        return (rms_normalize(x, self.epsilon) * weight).astype(x.dtype)
