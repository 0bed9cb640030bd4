"""The totals of a softmax as they are defined."""

import jax.numpy as jnp
from jax import Array


def totals(x: Array) -> tuple[Array, Array]:
    """log(sum(exp(x))), and the sum of -p log(p) with p = exp(x) / sum(exp(x))."""
    peak = jnp.max(x, axis=-1, keepdims=True)
    peak = jnp.where(peak == -jnp.inf, 0, peak)
    total = jnp.sum(jnp.exp(x - peak), axis=-1, keepdims=True)
    p = jnp.where(total == 0, 0, jnp.exp(x - peak) / total)
    entropy = -jnp.sum(p * jnp.log(jnp.where(p == 0, 1, p)), axis=-1)
    return (jnp.log(total) + peak)[..., 0], entropy
