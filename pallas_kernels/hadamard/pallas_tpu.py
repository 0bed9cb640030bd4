"""The transform for TPUs, in Pallas (Mosaic): one pass over memory, products with a matrix of at most 128 x 128.

Wider vectors are blocks of 128 lanes, to which the butterflies of the outer factor are applied. Entries of the matrix
are +1 and -1, which every precision of the matrix unit holds; the values need all of it. Narrower ones do not share
the 128 lanes: a vector that is NaN would reach its neighbours through the zeros of a common matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.block_sizes import BlockSizes, multiple_of
from pallas_kernels.hadamard.butterflies import butterflies
from pallas_kernels.hadamard.example import SHAPES, example
from pallas_kernels.hadamard.reference import matrix
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

LANES = 128
MAX_WIDTH = 4096
VALUES = 1 << 16
"""Of a block, by the rule, counted in whole lanes: 256 KiB, and six of them with the buffers of input and output."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """rows: vectors in a block; a multiple of 16, the height of a tile of bfloat16."""

    rows: int = multiple_of(16)


def unfit(dims: Dims) -> str | None:
    """Why a width cannot be served, or None."""
    return f"N={dims['N']} is over {MAX_WIDTH}" if dims["N"] > MAX_WIDTH else None


def heuristic(dims: Dims) -> Config:
    """As many rows as make blocks of `VALUES` values."""
    return Config(max(16, VALUES // max(LANES, dims["N"])))


def candidates(dims: Dims) -> list[Config]:
    """Configs with a quarter of the heuristic's rows up to four times as many."""
    rows = heuristic(dims).rows
    return [Config(size) for size in (rows // 4, rows // 2, rows, 2 * rows, 4 * rows) if size >= 16]


def _body(x_ref: Any, matrix_ref: Any, before_ref: Any, after_ref: Any, out_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32) * before_ref[...]
    blocks = [
        jnp.dot(x[:, start : start + LANES], matrix_ref[...], precision="highest", preferred_element_type=jnp.float32)
        for start in range(0, x.shape[1], LANES)
    ]
    for index, block in enumerate(butterflies(blocks)):
        lanes = pl.ds(index * LANES, block.shape[1])
        out_ref[:, lanes] = block * after_ref[:, lanes]


def transform(
    x: Array, before: Array | None, after: Array | None, *, config: Config | None = None, interpret: bool = False
) -> Array:
    """Transform each row of x, [..., N]; the result is float32."""
    width = x.shape[-1]
    rows = x.size // width
    block = min(rows, config_for(TUNABLE, {"N": width, "rows": rows}, config).rows)
    inner = min(width, LANES)

    def factors(values: Array | None, scale: float) -> Array:
        return jnp.full((1, width), scale) if values is None else (values.astype(jnp.float32) * scale)[None]

    whole = partial(pl.BlockSpec, index_map=lambda i: (0, 0))
    out = pl.pallas_call(
        _body,
        grid=(pl.cdiv(rows, block),),
        in_specs=[
            pl.BlockSpec((block, width), lambda i: (i, 0)),
            whole((inner, inner)),
            whole((1, width)),
            whole((1, width)),
        ],
        out_specs=pl.BlockSpec((block, width), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, width), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="walsh_hadamard",
    )(
        x.astype(jnp.promote_types(x.dtype, jnp.bfloat16)).reshape(rows, width),  # Mosaic has no float16
        jnp.asarray(matrix(inner)),
        factors(before, 1),
        factors(after, width**-0.5),
    )
    return out.reshape(x.shape)


TUNABLE = Tunable(
    "hadamard",
    "pallas_tpu",
    Config,
    heuristic,
    candidates,
    SHAPES,
    example,
    partial(transform, before=None, after=None),
)
