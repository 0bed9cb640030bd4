"""Rows t >= n_valid[b] as zeros, for implementations that do not look at n_valid themselves."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

RECORDS = slice(1, None)
"""The arguments of `commit` that have an axis T."""


def zeroed(run: Callable[..., Any], arrays: slice = slice(5)) -> Callable[..., Any]:
    """For forms that want rows t >= n_valid[b] of these arguments, [B, T, ...], as zeros, which change nothing.

    A select on the state would do the same in `commit`, but compilers then contract multiply and add otherwise than in
    verification, and the last bits differ.
    """

    def call(*args: Any, n_valid: Array, **kwargs: Any) -> Any:
        inputs = list(args)
        valid = jnp.arange(inputs[1].shape[1]) < n_valid[:, None]
        inputs[arrays] = [jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, 0) for x in inputs[arrays]]
        return run(*inputs, n_valid=n_valid, **kwargs)

    return call


def masked(run: Callable[..., Any], arrays: slice = slice(5)) -> Callable[..., Any]:
    """The same as `zeroed`, for forms that take no lengths."""
    return zeroed(lambda *args, n_valid, **kwargs: run(*args, **kwargs), arrays)
