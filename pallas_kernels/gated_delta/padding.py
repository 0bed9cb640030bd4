"""Rows t >= n_valid[b] as zeros, for implementations that do not look at n_valid themselves."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gated_delta.tokens import Records, Tokens


def zeroed(run: Callable[..., Any]) -> Callable[..., Any]:
    """For forms that want rows t >= n_valid[b] of tokens or records as zeros, which change nothing.

    A select on the state would do the same in `commit`, but compilers then contract multiply and add otherwise than in
    verification, and the last bits differ. The last argument is n_valid.
    """

    def call(given: Tokens | Records, *others: Any, **settings: Any) -> Any:
        valid = jnp.arange(given.k.shape[1]) < others[-1][:, None]
        zeros = jax.tree.map(lambda x: jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, 0), given)
        return run(zeros, *others, **settings)

    return call


def masked(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same as `zeroed`, for forms that take no n_valid."""
    return zeroed(lambda given, *others, **settings: run(given, *others[:-1], **settings))
