"""Checks that operations make of their arguments. Errors name the argument, what was got, and what is accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("an integer dtype",)


def expect_array(
    operation: str, name: str, x: Any, axes: str, dtypes: tuple[str, ...] = FLOATS, *, empty: bool = False
) -> None:
    """ValueError unless x is an array with these axes of one of the types.

    Args:
        operation, name: what errors speak of.
        x: the argument.
        axes: their letters, such as "B T Hk Dk", after "..." where there may be more.
        dtypes: names of types, or INTEGERS.
        empty: whether axes may be empty.
    """
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        raise ValueError(f"{operation}: {name} is of type {type(x).__name__}; accepted: an array [{axes}]")
    named = [axis for axis in axes.split() if axis != "..."]
    if len(x.shape) < len(named) or (len(x.shape) > len(named) and not axes.startswith("...")):
        raise ValueError(f"{operation}: {name} has shape {x.shape}; accepted: [{axes}]")
    if 0 in x.shape and not empty:
        raise ValueError(f"{operation}: {name} has shape {x.shape}; no axis of [{axes}] may be empty")
    expect_dtype(operation, name, x, dtypes)


def expect_dtype(operation: str, name: str, x: Any, dtypes: tuple[str, ...] = FLOATS) -> None:
    """ValueError unless an array is of one of the types, see `expect_array`."""
    known = jnp.issubdtype(x.dtype, jnp.integer) if dtypes == INTEGERS else x.dtype in dtypes
    if not known:
        raise ValueError(f"{operation}: {name} is {x.dtype}; accepted: {', '.join(dtypes)}")


def expect_number(operation: str, name: str, x: Any) -> None:
    """ValueError unless x is a finite number that is known when a program is traced."""
    if not isinstance(x, Real) or not math.isfinite(x):
        raise ValueError(f"{operation}: {name} is {x!r}; accepted: a finite number, and no array")


def expect_count(operation: str, name: str, x: Any) -> None:
    """ValueError unless x is an integer above zero that is known when a program is traced."""
    if not isinstance(x, Integral) or isinstance(x, bool) or x < 1:
        raise ValueError(f"{operation}: {name} is {x!r}; accepted: an integer, at least 1")


def expect_sizes(
    operation: str, dims: Mapping[str, Any], needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    """ValueError unless `dims` has what is needed and nothing that is not known, all of them sizes."""
    missing, unknown = [n for n in needed if n not in dims], [n for n in dims if n not in (*needed, *optional)]
    if missing or unknown:
        raise ValueError(
            f"{operation}: sizes missing: {', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}"
        )
    for name, size in dims.items():
        expect_count(operation, name, size)
