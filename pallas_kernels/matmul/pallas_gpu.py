"""Products of few rows from planes for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU).

A program takes a tile of a result's columns and a share of the depth. The shares are added up afterwards, in order.
Codes that are whole numbers are multiplied as such, with rows of x that are rounded to 16 bits (`gpu_integers`); others
are decoded, and x is not rounded (`gpu_floats`). What is computed for a row of x depends neither on the rows beside it
nor on how many there are.

Matrices that are multiplied with the same x share a launch: the tiles of one come after those of the other.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from pallas_kernels.matmul import gpu_floats, gpu_integers
from pallas_kernels.matmul.config import SHARES, GpuConfig, gpu_candidates, gpu_heuristic
from pallas_kernels.matmul.formats import BlockFormat
from pallas_kernels.matmul.gpu_fragments import ROWS
from pallas_kernels.matmul.gpu_rows import by_groups
from pallas_kernels.matmul.gpu_tile import Tile
from pallas_kernels.matmul.operands import Operands, added, example, model_shapes
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.mosaic_gpu import kernel_options, plgpu
from pallas_kernels.tuning import Tunable, config_for


@dataclass(frozen=True)
class _Matrix:
    """What a kernel knows of one of its matrices, or stacks of them.

    Attributes:
        kind: its format.
        names: of its parts.
        lanes: its rows, padded.
        columns: of a tile.
        first_tile, first_lane: where its tiles begin among those of all matrices, and its columns in the result.
    """

    kind: BlockFormat
    names: tuple[str, ...]
    lanes: int
    columns: int
    first_tile: int = 0
    first_lane: int = 0

    @property
    def end_tile(self) -> int:
        return self.first_tile - (-self.lanes // self.columns)

    @property
    def end_lane(self) -> int:
        return self.first_lane + self.lanes


def _side_by_side(operands: Sequence[Operands], columns: int) -> list[_Matrix]:
    """The matrices of some products; one that is narrower than a tile gets narrower tiles."""
    placed: list[_Matrix] = []
    for each in operands:
        before = (placed[-1].end_tile, placed[-1].end_lane) if placed else (0, 0)
        tile = next(size for size in (columns, columns // 2, columns // 4) if size <= each.lanes)
        placed.append(_Matrix(each.kind, tuple(each.parts), each.lanes, tile, *before))
    return placed


def _forms_of_x(operands: Sequence[Operands]) -> dict[str, Array]:
    """What the kernels read of x, by what they call it."""
    forms: dict[str, Array] = {}
    for each in operands:
        if (form := _form_of_x(each.kind)) not in forms:
            forms[form] = by_groups(each.blocks) if form == "whole" else each.blocks
    return forms


def _form_of_x(kind: BlockFormat) -> str:
    """Codes that are whole numbers are multiplied with whole numbers, rotated values with rotated ones."""
    if kind.table is None:
        return "whole"
    return "rotated" if kind.rotated else "floats"


def _body(
    index_ref: Any, x: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], out_ref: Any,
    *, matrices: Sequence[_Matrix], config: GpuConfig, interpreted: bool,
) -> None:  # fmt: skip
    tile = lax.axis_index("tile")
    for own, refs in zip(matrices, parts, strict=True):
        form = _form_of_x(own.kind)
        run = functools.partial(
            _multiply, index_ref, form, x[form], refs, out_ref, own, config, interpreted=interpreted
        )
        if len(matrices) == 1:
            run()
        else:
            pl.when((tile >= own.first_tile) & (tile < own.end_tile))(run)


def _multiply(
    index_ref: Any, form: str, x: Any, parts: Mapping[str, Any], out_ref: Any, own: _Matrix,
    config: GpuConfig, *, interpreted: bool,
) -> None:  # fmt: skip
    block, split = lax.axis_index("block"), lax.axis_index("split")
    # The last tile begins where it ends with the matrix; what two tiles have in common both write.
    first = jnp.minimum((lax.axis_index("tile") - own.first_tile) * own.columns, own.lanes - own.columns)
    tile = Tile(
        kind=own.kind,
        parts=parts,
        block=block,
        matrix=index_ref[block],
        first=first,
        width=own.columns,
        chunks=parts["plane0"].shape[1] // (32 * own.kind.planes[0]),
        split=split,
        splits=config.splits,
        interpreted=interpreted,
    )
    columns = pl.ds(own.first_lane + first, own.columns)
    if form == "whole":
        for i, sums in enumerate(gpu_integers.multiply(tile, x)):
            out_ref[split, block, pl.ds(i * ROWS, ROWS), columns] = sums
    else:
        for i, sums in enumerate(gpu_floats.multiply(tile, x)):
            out_ref[split, block, i, columns] = sums


@functools.partial(jax.jit, static_argnames=("act", "config", "interpret"))  # references to GMEM exist under jit
def quant_matmuls(
    x: Float[Array, "... K"],
    weights: Sequence[QTensor],
    act: Activations,
    index: Int[Array, " B"] | None = None,
    *,
    config: GpuConfig | None = None,
    interpret: bool = False,
) -> list[Float[Array, "... N"]]:
    """x @ weight.T of each in float32, of at most 16 rows.

    With an index, x is [B, M, K] and each weight a stack: block b is multiplied with matrix index[b].
    """
    del act  # whole numbers have 16 bits, whatever it says
    operands = [Operands.of(x, weight, index) for weight in weights]
    given, largest = operands[0], max(weights, key=lambda weight: weight.rows)
    n_blocks, n_rows, _ = given.blocks.shape
    dims = {"N": sum(weight.rows for weight in weights), "K": largest.width, "format": largest.format}
    most = max(each.lanes for each in operands)
    if config is not None and (config.splits > SHARES * given.chunks or config.columns > most):
        raise ValueError(
            f"quant_matmul: config is {config}; accepted: at most {SHARES * given.chunks} splits and {most} columns"
        )
    config = config_for(TUNABLE, dims, config)
    matrices = _side_by_side(operands, config.columns)
    shares = pl.kernel(
        functools.partial(_body, matrices=matrices, config=config, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct(
            (config.splits, n_blocks, -(-n_rows // ROWS) * ROWS, matrices[-1].end_lane), jnp.float32
        ),
        # Programs that run together have neighbouring columns of the same rows: memory gives these faster.
        mesh=plgpu.Mesh(grid=(n_blocks, config.splits, matrices[-1].end_tile), grid_names=("block", "split", "tile")),
        name="quant_matmul",
        **kernel_options(interpreted=interpret),
    )(given.numbers, _forms_of_x(operands), [each.parts for each in operands])
    total = added(shares)
    return [
        each.result(total[..., own.first_lane : own.end_lane]) for each, own in zip(operands, matrices, strict=True)
    ]


def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    act: Activations,
    index: Int[Array, " B"] | None = None,
    *,
    config: GpuConfig | None = None,
    interpret: bool = False,
) -> Float[Array, "... N"]:
    """The same of one matrix."""
    return quant_matmuls(x, [weight], act, index, config=config, interpret=interpret)[0]


SHAPES, RUN = model_shapes(), functools.partial(quant_matmul, act="a16")
TUNABLE = Tunable("matmul.packed", "pallas_gpu", GpuConfig, gpu_heuristic, gpu_candidates, SHAPES, example, RUN)
