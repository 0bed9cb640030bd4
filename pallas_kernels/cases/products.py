"""Products with matrices, packed, of floats and of experts; with rows of NaN, of zeros, and of huge values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import matmul
from pallas_kernels.cases.case import Call, Case, Given, Outcome
from pallas_kernels.matmul.experts import EXPERTS
from pallas_kernels.matmul.floats import FLOAT_MATMUL
from pallas_kernels.matmul.implementations import QUANT_MATMUL
from pallas_kernels.matmul.qtensor import BLOCKS
from pallas_kernels.matmul.random_blocks import random_blocks
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

_HUGE = 1e4
_VALUES_OF_THE_LAW = 1 << 24
"""Values of a matrix that the reference decodes at a time: of the heads of large models all would be gigabytes."""


def packed(dims: Dims) -> Case:
    """The dims are those of `quant_matmul`; where they have E and B, blocks of rows meet matrices of a stack."""
    shape = dims["N"], dims["K"]

    def make(seed: int) -> Given:
        stack = (_used(dims), *shape) if "E" in dims else shape
        weight = matmul.from_blocks(
            jnp.asarray(random_blocks(np.random.default_rng(seed), dims["format"], stack)), dims["format"]
        )
        prepared = weight if dims["layout"] == BLOCKS else matmul.prepare(weight)
        return Given(_rows(dims, seed), fixed=(prepared, _numbers(dims)))

    def call(impl: str | None, given: Given) -> Outcome:
        weight, index = given.fixed
        return Outcome(matmul.quant_matmul(given.x, weight, index=index, impl=impl))

    return Case(QUANT_MATMUL, dims, make, call, _cruel, _judged, _law(dims, call))


def floats(dims: Dims) -> Case:
    """The dims are those of `float_matmul`; E and B as for `packed`."""
    shape = dims["N"], dims["K"]

    def make(seed: int) -> Given:
        stack = (_used(dims), *shape) if "E" in dims else shape
        weight = normal(seed, *stack, dtype=dims["dtype"]) / math.sqrt(dims["K"])
        return Given(_rows(dims, seed), fixed=(weight.astype(dims["dtype"]), _numbers(dims)))

    def call(impl: str | None, given: Given) -> Outcome:
        weight, index = given.fixed
        return Outcome(matmul.float_matmul(given.x, weight, index=index, impl=impl))

    return Case(FLOAT_MATMUL, dims, make, call, _cruel, _judged, _law(dims, call))


def experts(dims: Dims) -> Case:
    """M rows, of which each is sent to k of E experts of F hidden columns."""
    rows, top_k, number, hidden, width = (dims[axis] for axis in ("M", "k", "E", "F", "D"))
    shapes = ((number, hidden, width), (number, hidden, width), (number, width, hidden))

    def make(seed: int) -> Given:
        expert = jnp.arange(rows * top_k, dtype=jnp.int32).reshape(rows, top_k) % number
        stacks = tuple(normal(seed + i, *shape) / math.sqrt(shape[-1]) for i, shape in enumerate(shapes))
        return Given(normal(seed, rows, width), fixed=(expert, jnp.full((rows, top_k), 1 / top_k), stacks))

    def call(impl: str | None, given: Given) -> Outcome:
        expert, weight, stacks = given.fixed
        return Outcome(matmul.experts(given.x, expert, weight, *stacks, impl=impl))

    of_an_expert = 4 * sum(math.prod(shape[1:]) for shape in shapes)
    return Case(EXPERTS, dims, make, call, unread=(number - min(number, rows * top_k)) * of_an_expert)


def _used(dims: Dims) -> int:
    """Matrices of a stack that are read; the others would only take memory."""
    return min(dims["E"], dims["B"])


def _numbers(dims: Dims) -> Array | None:
    return jnp.arange(dims["B"], dtype=jnp.int32) % _used(dims) if "E" in dims else None


def _rows(dims: Dims, seed: int) -> Array:
    lead = (dims["B"], dims["M"]) if "E" in dims else (dims["M"],)
    return normal(seed + 1, *lead, dims["K"])


def _cruel(given: Given) -> tuple[Given, Given]:
    """The last row is NaN, which is its own affair; others have a huge value, or nothing but zeros.

    In a stack the last block is one that nobody reads.
    """
    weight, index = given.fixed
    x = given.x.at[..., 0, 0].set(_HUGE)
    count = x.shape[-2]
    if count > 2:
        x = x.at[..., 1, :].set(0)
    clean = given._replace(x=x)
    if count > 1:
        x = x.at[..., -1, :].set(jnp.nan)
    if index is not None and len(index) > 1:
        clean = clean._replace(x=clean.x.at[-1].set(0))
        x, index = x.at[-1].set(0), index.at[-1].set(-1)
    return given._replace(x=x, fixed=(weight, index)), clean


def _judged(given: Given, outcome: Outcome) -> Any:
    """Rows of numbers, each over the RMS of its arguments: else a huge value of one row would hide all others, and what
    16 bits make of it would count for all. Where a row of the arguments is NaN, nothing is asked of the result.
    """
    size = jnp.sqrt(jnp.mean(jnp.square(given.x), axis=-1, keepdims=True))
    return jnp.where(jnp.isnan(size), 0, outcome.results / jnp.where(size > 0, size, 1))


def _law(dims: Dims, call: Call) -> Callable[[Given, Given], Any]:
    """What the reference gives for some of the matrix's rows after the other; of a stack, few are given anyway."""
    tile = min(max(_VALUES_OF_THE_LAW // dims["K"], 1), dims["N"])
    by_reference = jax.jit(partial(call, "reference"))
    of_rows = jax.jit(partial(product_with_rows, call, tile))

    def law(given: Given, finite: Given) -> Any:
        if finite.fixed[1] is not None:
            return _judged(given, by_reference(finite))
        # A loop of the host. In a loop of XLA all of the matrix could become float32 ahead of it.
        parts = [of_rows(finite, start) for start in range(0, dims["N"], tile)]
        return _judged(given, Outcome(jnp.concatenate(parts, axis=-1)[..., : dims["N"]]))

    return law


def product_with_rows(call: Call, count: int, given: Given, start: Int[Array, ""]) -> Float[Array, "M count"]:
    """What the reference gives for so many of the matrix's rows; numbers out of range are clipped."""
    weight, index = given.fixed
    rows = matmul.submatrix(weight, start + jnp.arange(count))
    return call("reference", given._replace(fixed=(rows, index))).results
