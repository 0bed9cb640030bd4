"""Lower triangular matrices of a chunk: decay ratios, and solves made of matrix products alone.

`jax.lax.linalg.triangular_solve` is no choice on the CPU: it is a library call that waits for tasks on the thread pool
it occupies, so two of them at once (as in a backward pass) deadlock a pool of two threads. Products are faster as well.
"""

import jax.numpy as jnp
from jax import Array, lax

BASE = 16
"""Up to this size whole masked products beat the slicing of blocks (measured on CPU at 64 x 64)."""


def decay_ratios(log_decay: Array) -> Array:
    """exp(G_t - G_i) where i <= t, 0 elsewhere; `log_decay` is G, the running sum of g, [..., T].

    Masked before the exp: above the diagonal the difference is positive, overflows, and poisons gradients.
    """
    n = log_decay.shape[-1]
    lower = jnp.tril(jnp.ones((n, n), bool))
    return jnp.exp(jnp.where(lower, log_decay[..., :, None] - log_decay[..., None, :], -jnp.inf))


def solve_unit_lower(a: Array, rhs: Array) -> Array:
    """X with (I + A) X = rhs, A the part of a [..., n, n] below the diagonal, rhs [..., n, m]; differentiable."""
    if a.shape[-1] == 1:
        return rhs
    a = jnp.tril(a, -1)
    inverse = _inverse(lax.stop_gradient(a))
    return lax.custom_linear_solve(
        lambda x: x + a @ x,
        rhs,
        solve=lambda _, b: inverse @ b,
        transpose_solve=lambda _, b: jnp.swapaxes(inverse, -1, -2) @ b,
    )


def _inverse(a: Array) -> Array:
    """(I + A)^-1 for A strictly lower triangular; halves beyond BASE."""
    n = a.shape[-1]
    if n <= BASE or n % 2:
        return doubling_inverse(a)
    half = n // 2
    first, last = _inverse(jnp.stack([a[..., :half, :half], a[..., half:, half:]]))
    corner = -(last @ a[..., half:, :half] @ first)
    top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([corner, last], axis=-1)], axis=-2)


def doubling_inverse(a: Array) -> Array:
    """(I + A)^-1 for A strictly lower triangular, from the inverses of ever larger diagonal blocks, as whole products.

    As stable as forward substitution. The Neumann series by repeated squaring is not: with repeated keys the powers of
    A grow like binomial coefficients and cancel (error 3e-4 at 16 x 16 where this has 3e-8).
    """
    n = a.shape[-1]
    row, column = (lax.broadcasted_iota(jnp.int32, a.shape, a.ndim - axis) for axis in (2, 1))
    inverse = jnp.where(row == column, 1.0, 0.0).astype(a.dtype)
    for level in range((n - 1).bit_length()):
        # Below the diagonal of blocks of 2^level, within blocks of twice that size.
        corners = jnp.where((row ^ column) >> level == 1, a, 0)
        inverse = inverse - (corners if level == 0 else inverse @ corners @ inverse)
    return inverse
