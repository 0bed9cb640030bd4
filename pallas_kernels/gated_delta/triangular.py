"""Inverse of small unit lower triangular matrices by matrix products.

XLA's CPU backend runs `triangular_solve` as a library call that waits on the thread pool it runs in: several of them
at once (the layers of a backward pass) deadlock when the pool has two threads. Products do not, and are faster here.
"""

import jax
import jax.numpy as jnp
from jax import Array

BASE = 8
"""Blocks of this size are inverted by the Neumann series, which is exact for nilpotent matrices; larger ones from
their halves, so that no power of a large block is formed and rounding errors stay those of substitution."""


def _inverse(strictly_lower: Array) -> Array:
    n = strictly_lower.shape[-1]
    if n <= BASE:
        inverse, power = jnp.eye(n, dtype=strictly_lower.dtype) - strictly_lower, strictly_lower
        for _ in range((n - 1).bit_length() - 1):
            power = power @ power
            inverse = inverse + inverse @ power
        return inverse
    half = n // 2
    upper_left, lower_right = strictly_lower[..., :half, :half], strictly_lower[..., half:, half:]
    inverse = _inverse(jnp.stack([upper_left, lower_right]))
    lower_left = -inverse[1] @ (strictly_lower[..., half:, :half] @ inverse[0])
    top = jnp.concatenate([inverse[0], jnp.zeros_like(lower_left)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([lower_left, inverse[1]], axis=-1)], axis=-2)


@jax.custom_vjp
def unit_lower_inverse(strictly_lower: Array) -> Array:
    """(I + A)^-1 for strictly lower triangular A [..., n, n]; differentiable."""
    n = strictly_lower.shape[-1]
    size = 1 << (n - 1).bit_length()
    padding = [(0, 0)] * (strictly_lower.ndim - 2) + [(0, size - n)] * 2
    return _inverse(jnp.pad(strictly_lower, padding))[..., :n, :n]


def _forward(strictly_lower: Array) -> tuple[Array, Array]:
    inverse = unit_lower_inverse(strictly_lower)
    return inverse, inverse


def _backward(inverse: Array, cotangent: Array) -> tuple[Array]:
    transposed = jnp.swapaxes(inverse, -1, -2)
    return (-jnp.tril(transposed @ cotangent @ transposed, -1),)


unit_lower_inverse.defvjp(_forward, _backward)
