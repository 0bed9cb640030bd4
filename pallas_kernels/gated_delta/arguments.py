"""Checks of arguments. Errors name the argument, what was got, and what is accepted."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from pallas_kernels.arguments import INTEGERS, expect_array, expect_dtype, expect_sizes
from pallas_kernels.gated_delta.heads import HEAD_MAPS
from pallas_kernels.gated_delta.tokens import Records, Tokens


def check_tokens(operation: str, tokens: Tokens, n_valid: Array | None, head_map: str) -> dict[str, int]:
    """The sizes by axis letter; ValueError where the arguments do not belong together."""
    q, k, v, g, beta = tokens
    expect_array(operation, "q", q, "B T Hk Dk")
    expect_array(operation, "v", v, "B T Hv Dv")
    sizes = _sizes(q, v, head_map)
    for name, x, axes in (("k", k, "B T Hk Dk"), ("v", v, "B T Hv Dv"), ("g", g, "B T Hv"), ("beta", beta, "B T Hv")):
        expect(operation, name, x, tuple(sizes[axis] for axis in axes.split()), axes)
        expect_dtype(operation, name, x)
    check_head_map(operation, sizes["Hk"], sizes["Hv"], head_map)
    if n_valid is not None:
        expect_counts(operation, "n_valid", n_valid, sizes["B"])
    return sizes


def check_records(operation: str, records: Records, head_map: str) -> dict[str, int]:
    """The sizes by axis letter; ValueError where the records do not belong together."""
    k, u, g = records
    expect_array(operation, "records.k", k, "B T Hk Dk")
    expect_array(operation, "records.u", u, "B T Hv Dv", ("float32",))
    sizes = _sizes(k, u, head_map)
    for name, x, axes in (("u", u, "B T Hv Dv"), ("g", g, "B T Hv")):
        expect(operation, f"records.{name}", x, tuple(sizes[axis] for axis in axes.split()), axes)
    expect_dtype(operation, "records.g", g, ("float32",))
    check_head_map(operation, sizes["Hk"], sizes["Hv"], head_map)
    return sizes


def _sizes(k: Array, values: Array, head_map: str) -> dict[str, int]:
    sizes = dict(zip(("B", "T", "Hk", "Dk", "Hv", "Dv"), (*k.shape, *values.shape[2:]), strict=True))
    return with_head_map(sizes, head_map)


def with_head_map(sizes: Mapping[str, int], head_map: str) -> dict[str, int]:
    """What tells calls apart: those of the map "grouped" say so, because kernels read other key heads there."""
    return {**sizes, "grouped": True} if head_map == "grouped" else dict(sizes)


def check_sizes(operation: str, dims: Mapping[str, Any], head_map: str) -> None:
    """ValueError unless these are the sizes of a call."""
    expect_sizes(operation, dims, ("T", "Hk", "Hv", "Dk", "Dv"), ("B", "M"))
    check_head_map(operation, dims["Hk"], dims["Hv"], head_map)


def check_head_map(operation: str, hk: int, hv: int, head_map: str) -> None:
    """ValueError unless the head map is known and Hv is a multiple of Hk."""
    if head_map not in HEAD_MAPS:
        raise ValueError(f"{operation}: head_map is {head_map!r}; accepted: {', '.join(map(repr, HEAD_MAPS))}")
    if hv % hk:
        raise ValueError(
            f"{operation}: v has {hv} heads and k {hk}; the value heads must be a multiple of the key heads"
        )


def expect(operation: str, name: str, x: Any, shape: tuple[int, ...], axes: str) -> None:
    """ValueError unless the argument is an array of the shape; `axes` names its axes."""
    if not hasattr(x, "shape"):
        raise ValueError(f"{operation}: {name} is of type {type(x).__name__}; accepted: an array [{axes}]")
    if x.shape != shape:
        raise ValueError(f"{operation}: {name} has shape {x.shape}; [{axes}] is {shape} with the other arguments")


def expect_state(operation: str, name: str, x: Array, shape: tuple[int, ...], axes: str) -> None:
    """ValueError unless the argument has the shape and is float32."""
    expect(operation, name, x, shape, axes)
    if x.dtype != jnp.float32:
        raise ValueError(f"{operation}: {name} is {x.dtype}; recurrent state is float32")


def expect_counts(operation: str, name: str, x: Any, n_rows: int) -> None:
    """ValueError unless the argument is an integer per row."""
    expect(operation, name, x, (n_rows,), "B")
    expect_dtype(operation, name, x, INTEGERS)
