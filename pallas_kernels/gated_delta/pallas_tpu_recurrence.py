"""One token of the recurrence as TPU kernels compute it.

All kernels do the same operations in the same order, so that `commit` gives the state that verification had.
"""

import jax.numpy as jnp
from jax import Array


def decay(state: Array, factor: Array) -> Array:
    """The state [Dk, Dv] before the token's update; `factor` is exp(g)."""
    return state * factor


def add(state: Array, k: Array, u: Array) -> Array:
    """The state with k [Dk, 1] times u [1, Dv] added."""
    return state + k * u


def step(
    state: Array, q: Array, k: Array, v: Array, factor: Array, beta: Array, scale: float
) -> tuple[Array, Array, Array]:
    """State [Dk, Dv], u and output [1, Dv] of one token; q and k are columns [Dk, 1] and v is a row [1, Dv].

    Keys and queries as columns and everything of width Dv as rows: sums over Dk are sums over sublanes.
    """
    state = decay(state, factor)
    u = beta * (v - jnp.sum(state * k, axis=0, keepdims=True))
    state = add(state, k, u)
    return state, u, scale * jnp.sum(state * q, axis=0, keepdims=True)
