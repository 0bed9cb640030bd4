"""Products of many rows from planes for NVIDIA GPUs since Ampere, in Triton, on tensor cores.

A program takes a tile of the result and goes through the depth. It decodes the columns of the matrix that share a scale
(32, or 16 in some formats) and multiplies them with the same columns of x. Both factors are rounded to bfloat16, and
their products are summed in float32. What is computed for a row of x depends neither on the rows beside it nor on the
tile. A matrix is decoded anew for each tile of rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels.block_sizes import BlockSizes, one_of
from pallas_kernels.matmul.operands import Operands, example, model_shapes, unfit_for_many_rows
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.matmul.triton_planes import matrix_parts, meaning
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import launch, missing
from pallas_kernels.tuning import Tunable, config_for

PROGRAMS = 108
"""So many keep an A100 busy: one for each multiprocessor."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """The tile of a program. It does not change a result.

    Attributes:
        rows: of x: 32, 64 or 128.
        columns: of the result: 64 or 128.
        warps: 4 or 8.
        stages: steps through the depth that are loaded ahead, and the one at hand: 2, 3 or 4.
    """

    rows: int = one_of(32, 64, 128)
    columns: int = one_of(64, 128)
    warps: int = one_of(4, 8)
    stages: int = one_of(2, 3, 4)


def candidates(dims: Dims) -> list[Config]:
    """Every config whose sums fit into registers: 16 to 64 of each thread. None depends on the sizes."""
    return [
        Config(rows, columns, warps, stages)
        for rows in (32, 64, 128)
        for columns in (64, 128)
        for warps in (4, 8)
        if 16 <= rows * columns // (32 * warps) <= 64
        for stages in (2, 3, 4)
    ]


def heuristic(dims: Dims) -> Config:
    """The tallest tile that keeps every multiprocessor busy, and of these the widest."""

    def programs(config: Config) -> int:
        return -(-dims["N"] // config.columns) * -(-dims["M"] // config.rows)

    tiles = [config for config in candidates(dims) if (config.warps == 8) == (config.rows * config.columns > 4096)]
    fitting = [config for config in tiles if config.stages == 3 and config.rows < max(dims["M"], 1) + 32]
    busy = [config for config in fitting if programs(config) >= PROGRAMS]
    return max(busy, key=lambda config: (config.rows, config.columns)) if busy else max(fitting, key=programs)


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why the kernel cannot serve a call, or None."""
    return unfit_for_many_rows(dims) or missing(interpreted=interpreted)


def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    act: Activations,
    index: Int[Array, " B"] | None = None,
    *,
    config: Config | None = None,
    interpret: bool = False,
) -> Float[Array, "... N"]:
    """x @ weight.T in float32, of factors that are rounded to bfloat16.

    With an index, x is [B, M, K] and the weight a stack: block b is multiplied with matrix index[b].
    """
    del act  # for kernels of integers
    from pallas_kernels.matmul import triton_kernels

    given = Operands.of(x, weight, index, jnp.bfloat16)
    n_blocks, n_rows, _ = given.blocks.shape
    config = config_for(TUNABLE, {"M": n_rows, "N": weight.rows, "K": weight.width, "format": weight.format}, config)
    (out,) = launch(
        triton_kernels.many_rows,
        (given.numbers, given.blocks, *matrix_parts(given)),
        (),
        (jax.ShapeDtypeStruct((n_blocks, n_rows, given.lanes), jnp.float32),),
        grid=(-(-n_rows // config.rows), -(-given.lanes // config.columns), n_blocks),
        warps=config.warps,
        stages=config.stages,
        interpret=interpret,
        ROWS=n_rows,
        TILE=config.rows,
        COLUMNS=config.columns,
        WIDEN=interpret,
        **meaning(given),
    )
    return given.result(out)


SHAPES, RUN = model_shapes(512), functools.partial(quant_matmul, act="a16")
TUNABLE = Tunable("matmul.packed", "triton_prefill", Config, heuristic, candidates, SHAPES, example, RUN)
