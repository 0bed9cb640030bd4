"""Products of few rows from planes for NVIDIA GPUs since Ampere, in Triton, on tensor cores.

A program takes a tile of the result's columns and a share of the depth. The codes of 32 columns of the matrix that
share a scale (16 in some formats) become bfloat16, which holds them exactly, as it does the pieces that a row of x is
split into: one for bfloat16, two for float16, three for float32. Their products are summed in float32 and then scaled;
neither factor is rounded. Codes of rotated formats stand for floats, which are split into three as well. The shares are
added up afterwards, in order. What is computed for a row of x depends neither on the rows beside it nor on how many
there are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels.block_sizes import BlockSizes, at_least_one, one_of
from pallas_kernels.matmul.config import FEW_ROWS
from pallas_kernels.matmul.operands import Operands, added, example, model_shapes, unfit_for_few_rows
from pallas_kernels.matmul.planes import CHUNK, GROUP
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import bfloat16_parts, launch, missing
from pallas_kernels.tuning import Tunable, config_for

PIECES = {"bfloat16": 1, "float16": 2, "float32": 3}
"""Numbers of bfloat16 that add up to any number of a type, see `bfloat16_parts`."""
PROGRAMS = 432
"""So many are enough for the largest GPUs before Hopper: four for each multiprocessor of an A100."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """What a program takes.

    Attributes:
        columns: rows of the matrix, which are columns of the result: 32, 64 or 128.
        splits: shares of the depth; divides the number of chunks of 256. It changes how sums are rounded.
        warps: 2, 4 or 8.
        stages: chunks that are loaded ahead, and the one at hand: 1 to 4.
    """

    columns: int = one_of(32, 64, 128)
    splits: int = at_least_one()
    warps: int = one_of(2, 4, 8)
    stages: int = one_of(1, 2, 3, 4)


def heuristic(dims: Dims) -> Config:
    """A configuration for N, K and a format: one that fits into registers, and as few splits as keep the GPU busy."""

    def programs(config: Config) -> int:
        return -(-dims["N"] // config.columns) * config.splits

    fitting = [config for config in candidates(dims) if (config.columns, config.warps, config.stages) == (64, 4, 2)]
    return min(fitting, key=lambda config: (programs(config) < PROGRAMS, abs(programs(config) - PROGRAMS)))


def candidates(dims: Dims) -> list[Config]:
    """All configs for N and K with up to 32 splits."""
    chunks = -(-dims["K"] // CHUNK)
    return [
        Config(columns, splits, warps, stages)
        for columns in (32, 64, 128)
        for splits in range(1, min(chunks, 32) + 1)
        if chunks % splits == 0
        for warps in (2, 4, 8)
        if columns // 32 <= warps <= columns // 16
        for stages in ((2, 3) if columns < 128 else (2,))  # of float32 rows three are too large for GPUs of consumers
    ]


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why the kernel cannot serve a call, or None."""
    return unfit_for_few_rows(dims) or missing(interpreted=interpreted)


def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    act: Activations,
    index: Int[Array, " B"] | None = None,
    *,
    config: Config | None = None,
    interpret: bool = False,
) -> Float[Array, "... N"]:
    """x @ weight.T in float32, of at most 16 rows; activations are not rounded.

    With an index, x is [B, M, K] and the weight a stack: block b is multiplied with matrix index[b].
    """
    del act  # for kernels of integers
    from pallas_kernels.matmul import triton_kernels

    given = Operands.of(x, weight, index)
    dtype = given.blocks.dtype
    (n_blocks, n_rows, _), chunks, lanes = given.blocks.shape, given.chunks, given.lanes
    config = config_for(TUNABLE, {"N": weight.rows, "K": weight.width, "format": weight.format}, config)
    if chunks % config.splits:
        raise ValueError(f"quant_matmul: config is {config}; accepted: splits that divide {chunks}")
    x_pieces = jnp.moveaxis(bfloat16_parts(given.blocks, PIECES[dtype.name]), 0, 1)
    sums = given.blocks.astype(jnp.float32).reshape(n_blocks, n_rows, -1, GROUP).sum(axis=-1)
    (shares,) = launch(
        triton_kernels.few_rows,
        (given.numbers, x_pieces, sums, *matrix_parts(given)),
        (),
        (jax.ShapeDtypeStruct((config.splits, n_blocks, n_rows, lanes), jnp.float32),),
        grid=(-(-lanes // config.columns), n_blocks, config.splits),
        warps=config.warps,
        stages=config.stages,
        interpret=interpret,
        ROWS=n_rows,
        PADDED=FEW_ROWS,
        PIECES=PIECES[dtype.name],
        SPLITS=config.splits,
        COLUMNS=config.columns,
        WIDEN=interpret,
        **meaning(given),
    )
    return given.result(added(shares))


PARTS = ("plane0", "plane1", "scales", "super_scales", "minima", "super_minima")


def matrix_parts(given: Operands) -> list[Array]:
    """What kernels read of matrices: what codes of rotated formats stand for, in parts, and the parts in planes."""
    table = jnp.asarray(np.resize(given.kind.table or (0.0,), 16), jnp.float32)
    return [bfloat16_parts(table, PIECES["float32"]), *(given.parts.get(name, given.parts["plane0"]) for name in PARTS)]


def meaning(given: Operands) -> dict[str, Any]:
    """How matrices lie, and what their codes and scales mean, as constants of a kernel."""
    kind = given.kind
    integers = np.zeros(16, np.int8) if kind.table is None or kind.rotated else np.array(kind.table, np.int8)
    return {
        "CHUNKS": given.chunks,
        "LANES": given.lanes,
        "PARTS": PIECES["float32"] if kind.rotated else 1,
        "BITS0": kind.planes[0],
        "BITS1": kind.planes[1] if len(kind.planes) > 1 else 0,
        "GROUP": kind.per_scale,
        "SUPER": "super_scales" in given.parts,
        "MINIMA": "minima" in given.parts,
        "OFFSET": kind.codes.offset,
        "CODEBOOK": kind.table is not None,
        **{f"TABLE{i}": int(four) for i, four in enumerate(integers.view("<i4"))},
    }


SHAPES, RUN = model_shapes(), functools.partial(quant_matmul, act="a16")
TUNABLE = Tunable("matmul.packed", "triton", Config, heuristic, candidates, SHAPES, example, RUN)
