"""Products of few rows from planes for NVIDIA GPUs since Ampere, in Triton, on tensor cores.

A program takes a tile of the result's columns and a share of the depth. The codes of 32 columns of the matrix that
share a scale (16 in some formats) become bfloat16, which holds them exactly, as it does the pieces that a row of x is
split into: one for bfloat16, two for float16, three for float32. Their products are summed in float32 and then scaled;
neither factor is rounded. The shares are added up afterwards, in order. What is computed for a row of x depends neither
on the rows beside it nor on how many there are.
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

from pallas_kernels.matmul.config import FEW_ROWS
from pallas_kernels.matmul.formats import FORMATS, BlockFormat
from pallas_kernels.matmul.planes import CHUNK, GROUP, PLANE_FORMATS, PLANES, pack
from pallas_kernels.matmul.qtensor import Activations, QTensor, from_blocks
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import bfloat16_parts, launch, missing
from pallas_kernels.tuning import Tunable, config_for, register

PIECES = {"bfloat16": 1, "float16": 2, "float32": 3}
"""Numbers of bfloat16 that add up to any number of a type, see `bfloat16_parts`."""
PROGRAMS = 432
"""So many are enough for the largest GPUs before Hopper: four for each multiprocessor of an A100."""


@dataclass(frozen=True)
class Config:
    """What a program takes.

    Attributes:
        columns: rows of the matrix, which are columns of the result: 32, 64 or 128.
        splits: shares of the depth; divides the number of chunks of 256. It changes how sums are rounded.
        warps: 2, 4 or 8.
        stages: chunks that are loaded ahead, and the one at hand: 1 to 4.
    """

    columns: int
    splits: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        for name, accepted in (("columns", (32, 64, 128)), ("warps", (2, 4, 8)), ("stages", (1, 2, 3, 4))):
            if (size := getattr(self, name)) not in accepted:
                raise ValueError(f"{name} is {size}; accepted: {', '.join(map(str, accepted))}")
        if self.splits < 1:
            raise ValueError(f"splits is {self.splits}; accepted: 1 and more")


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
        for stages in (2, 3)
    ]


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why the kernel cannot serve a call, or None."""
    if dims["layout"] != PLANES:
        return f"reads the layout {PLANES!r}, see `prepare`"
    if dims["M"] > FEW_ROWS:
        return f"M={dims['M']} is over {FEW_ROWS}"
    return missing(interpreted=interpreted)


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
    blocks = x.reshape(1, -1, weight.width) if index is None else x
    n_blocks, n_rows, _ = blocks.shape
    if blocks.size == 0:
        return jnp.zeros((*x.shape[:-1], weight.rows))
    from pallas_kernels.matmul import triton_kernels

    kind = PLANE_FORMATS[weight.format]
    parts = weight.parts if index is not None else {name: part[None] for name, part in weight.parts.items()}
    n_matrices, plane_rows, lanes = parts["plane0"].shape
    chunks = plane_rows // (32 * kind.planes[0])
    config = config_for(TUNABLE, {"N": weight.rows, "K": weight.width, "format": weight.format}, config)
    if chunks % config.splits:
        raise ValueError(f"quant_matmul: config is {config}; accepted: splits that divide {chunks}")
    blocks = blocks if blocks.dtype.name in PIECES else blocks.astype(jnp.float32)
    blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, chunks * CHUNK - weight.width)))
    numbers = jnp.zeros(1, jnp.int32) if index is None else jnp.minimum(index, n_matrices - 1).astype(jnp.int32)
    x_pieces = jnp.moveaxis(bfloat16_parts(blocks, PIECES[blocks.dtype.name]), 0, 1)
    sums = blocks.astype(jnp.float32).reshape(n_blocks, n_rows, -1, GROUP).sum(axis=-1)
    arrays = [parts.get(name, parts["plane0"]) for name in PARTS]
    (shares,) = launch(
        triton_kernels.product,
        (numbers, x_pieces, sums, *arrays),
        (),
        (jax.ShapeDtypeStruct((config.splits, n_blocks, n_rows, lanes), jnp.float32),),
        grid=(-(-lanes // config.columns), n_blocks, config.splits),
        warps=config.warps,
        stages=config.stages,
        interpret=interpret,
        ROWS=n_rows,
        PADDED=FEW_ROWS,
        PIECES=PIECES[blocks.dtype.name],
        CHUNKS=chunks,
        LANES=lanes,
        SPLITS=config.splits,
        COLUMNS=config.columns,
        WIDEN=interpret,
        **_meaning(kind, parts),
    )
    out = functools.reduce(jnp.add, [shares[i] for i in range(config.splits)])
    return out[..., : weight.rows].reshape(*x.shape[:-1], weight.rows)


PARTS = ("plane0", "plane1", "scales", "super_scales", "minima", "super_minima")


def _meaning(kind: BlockFormat, parts: dict[str, Any]) -> dict[str, Any]:
    """What codes and scales of a format mean, as constants of the kernel."""
    table = np.zeros(16, np.int8) if kind.table is None else np.array(kind.table, np.int8)
    return {
        "BITS0": kind.planes[0],
        "BITS1": kind.planes[1] if len(kind.planes) > 1 else 0,
        "GROUP": kind.per_scale,
        "SUPER": "super_scales" in parts,
        "MINIMA": "minima" in parts,
        "OFFSET": kind.codes.offset,
        "CODEBOOK": kind.table is not None,
        **{f"TABLE{i}": int(four) for i, four in enumerate(table.view("<i4"))},
    }


def _example(dims: Dims) -> tuple[Array, QTensor]:
    blocks = jnp.ones((dims["N"], FORMATS[dims["format"]].row_bytes(dims["K"])), jnp.uint8)
    return jnp.ones((4, dims["K"]), jnp.bfloat16), pack(from_blocks(blocks, dims["format"]))


TUNABLE = register(
    Tunable(
        operation="matmul.packed",
        impl="triton",
        Config=Config,
        heuristic=heuristic,
        candidates=candidates,
        platforms=frozenset({"gpu"}),
        shapes=tuple(
            {"N": n, "K": k, "format": format} for format in ("Q8_0", "Q4_K") for n, k in ((17408, 5120), (5120, 17408))
        ),
        example=_example,
        run=jax.jit(functools.partial(quant_matmul, act="a16"), static_argnames="config"),
    )
)
