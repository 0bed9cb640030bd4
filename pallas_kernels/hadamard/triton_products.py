"""The transform for NVIDIA GPUs since Ampere, in Triton: products with matrices of signs, on tensor cores.

Vectors up to a width of 128 are multiplied with one matrix. Wider ones are 16 pieces: each is multiplied, and then what
stands at the same place in all pieces. Three numbers of bfloat16 add up to each value, and signs are exact, so nothing
is rounded but the sums, which are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, one_of, power_of_two
from pallas_kernels.hadamard.example import SHAPES, example
from pallas_kernels.hadamard.reference import matrix
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import launch, missing
from pallas_kernels.tuning import Tunable, config_for

LEAST = 16
"""Rows and columns that tensor cores multiply at least, and pieces of a wide vector."""
ONE_PIECE, WIDEST = 128, 2048
VALUES = 2048
"""Of all vectors of a program, unless one alone has more: 16 for each of 128 threads."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """rows: vectors of a program, a power of two of at most 128, 16 at least up to a width of 128; warps: 4 or 8."""

    rows: int = power_of_two(128)
    warps: int = one_of(4, 8)


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why a width cannot be served, or None."""
    return (f"N={dims['N']} is over {WIDEST}" if dims["N"] > WIDEST else None) or missing(interpreted=interpreted)


def _least_rows(width: int) -> int:
    return LEAST if width <= ONE_PIECE else 1


def heuristic(dims: Dims) -> Config:
    """As many vectors as leave registers for their parts and the matrix, which is largest at a width of 128."""
    rows = max(_least_rows(dims["N"]), VALUES // max(dims["N"], LEAST))
    return Config(rows, 8 if dims["N"] == ONE_PIECE else 4)


def candidates(dims: Dims) -> list[Config]:
    """Half as many vectors, as many, and twice as many as the heuristic has."""
    rows = heuristic(dims).rows
    least = _least_rows(dims["N"])
    return [Config(n, warps) for n in (rows // 2, rows, 2 * rows) if least <= n <= 128 for warps in (4, 8)]


def transform(
    x: Array, before: Array | None, after: Array | None, *, config: Config | None = None, interpret: bool = False
) -> Array:
    """Transform each row of x, [..., N]; the result is float32."""
    from pallas_kernels.hadamard import triton_kernels

    width = x.shape[-1]
    count = x.size // width
    config = config_for(TUNABLE, {"N": width, "rows": count}, config)
    rows, outer = max(config.rows, _least_rows(width)), 1 if width <= ONE_PIECE else LEAST
    inner = max(width // outer, LEAST)

    def factors(values: Array | None) -> Array:
        return jnp.ones(width) if values is None else values.astype(jnp.float32)

    def signs(size: int, padded: int) -> Array:
        return jnp.asarray(np.pad(matrix(size), (0, padded - size)), jnp.bfloat16)

    (out,) = launch(
        triton_kernels.transform,
        (x, factors(before), factors(after), signs(width // outer, inner), signs(LEAST, LEAST)),
        (),
        (jax.ShapeDtypeStruct(x.shape, jnp.float32),),
        grid=(-(-count // rows),),
        warps=config.warps,
        interpret=interpret,
        COUNT=count,
        N=width,
        ROWS=rows,
        INNER=inner,
        OUTER=outer,
        SCALE=width**-0.5,
        WIDEN=interpret,
    )
    return out


TUNABLE = Tunable(
    "hadamard",
    "triton",
    Config,
    heuristic,
    candidates,
    SHAPES,
    example,
    partial(transform, before=None, after=None),
)
