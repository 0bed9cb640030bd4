"""Norms as they are defined."""

import jax.numpy as jnp
from jax import Array


def normalize(x: Array, weight: Array | None, gate: Array | None, *, scale: float, epsilon: float) -> Array:
    """x / sqrt(scale * sum(x^2) + epsilon), times the weight, times gate / (1 + exp(-gate))."""
    out = x / jnp.sqrt(scale * jnp.sum(jnp.square(x), axis=-1, keepdims=True) + epsilon)
    out = out if weight is None else out * weight
    return out if gate is None else out * gate / (1 + jnp.exp(-gate))
