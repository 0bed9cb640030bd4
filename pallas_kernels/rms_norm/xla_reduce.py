"""Norms over the last axis in plain XLA."""

import jax
import jax.numpy as jnp
from jax import Array


def normalize(x: Array, weight: Array | None, gate: Array | None, *, scale: float, epsilon: float) -> Array:
    """x / sqrt(scale * sum(x^2) + epsilon), times the weight, times silu(gate); all float32."""
    out = x * jax.lax.rsqrt(scale * jnp.sum(x * x, axis=-1, keepdims=True) + epsilon)
    out = out if weight is None else out * weight
    return out if gate is None else out * jax.nn.silu(gate)
