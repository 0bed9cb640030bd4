"""The totals of a softmax in plain XLA."""

import jax.numpy as jnp
from jax import Array


def totals(x: Array) -> tuple[Array, Array]:
    """log(sum(exp(x))) and the entropy, from two sums relative to the largest value."""
    peak = jnp.max(x, axis=-1, keepdims=True)
    peak = jnp.where(peak == -jnp.inf, 0, peak)
    below = x - peak
    share = jnp.exp(below)
    total = jnp.sum(share, axis=-1)
    log_total = jnp.log(total)
    mean = jnp.sum(share * jnp.where(share == 0, 0, below), axis=-1) / total
    return log_total + peak[..., 0], jnp.where(total == 0, 0, log_total - mean)
