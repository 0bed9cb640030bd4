"""Products of few rows from planes for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU), on CUDA cores.

A program takes a tile of a result's columns and a share of the depth; a thread has a few neighbouring columns, whose
bytes it loads row by row of the planes, decodes in registers and multiplies with every row of x, in float32. Neither
factor is rounded. The shares are added up afterwards, in order. What is computed for a row of x depends neither on the
rows beside it nor on how many there are.

Matrices that are multiplied with the same x share a launch: the tiles of one come after those of the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float, Int

from pallas_kernels.matmul.config import SHARES, GpuConfig, gpu_candidates, gpu_heuristic
from pallas_kernels.matmul.formats import BlockFormat
from pallas_kernels.matmul.operands import Operands, added, example, model_shapes
from pallas_kernels.matmul.planes import (
    CHUNK,
    code_values,
    floats,
    plane_names,
    scale_and_bias,
)
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.mosaic_gpu import WARPGROUP, kernel_options, laid_out, load
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
    """The matrices of some products."""
    placed: list[_Matrix] = []
    for each in operands:
        before = (placed[-1].end_tile, placed[-1].end_lane) if placed else (0, 0)
        tile = next(size for size in (columns, columns // 2, columns // 4) if size <= each.lanes)
        placed.append(_Matrix(each.kind, tuple(each.parts), each.lanes, tile, *before))
    return placed


def _rotations(products: Iterable[_Matrix | Operands]) -> list[bool]:
    """Whether x is rotated: formats that are rotated need another x than those that are not."""
    return sorted({each.kind.rotated for each in products})


def _body(index_ref: Any, *refs: Any, matrices: Sequence[_Matrix], config: GpuConfig, interpreted: bool) -> None:
    tile, given, out_ref = lax.axis_index("tile"), iter(refs[:-1]), refs[-1]
    x_refs = {rotated: next(given) for rotated in _rotations(matrices)}
    for each in matrices:
        own = {name: next(given) for name in each.names}
        own_tile = functools.partial(
            _tile, index_ref, x_refs[each.kind.rotated], own, out_ref, tile - each.first_tile, each, config,
            interpreted=interpreted,
        )  # fmt: skip
        if len(matrices) == 1:
            own_tile()
        else:
            pl.when((tile >= each.first_tile) & (tile < each.end_tile))(own_tile)


def _tile(
    index_ref: Any, x_ref: Any, parts: Mapping[str, Any], out_ref: Any, tile: Array, own: _Matrix, config: GpuConfig,
    *, interpreted: bool,
) -> None:  # fmt: skip
    block, split = lax.axis_index("block"), lax.axis_index("split")
    kind, chunks = own.kind, x_ref.shape[-1] // CHUNK
    layout = plgpu.Layout.WG_STRIDED((own.columns,), vec_size=own.columns // WARPGROUP)
    # The last tile begins where it ends with the matrix; what two tiles have in common both write.
    first_column = jnp.minimum(tile * own.columns, own.lanes - own.columns)
    columns = pl.ds(first_column, own.columns)
    matrix = jnp.maximum(index_ref[block], 0)

    def row_of(name: str, row: Any) -> Array:
        return load(parts[name].at[matrix, row, columns], layout, interpreted=interpreted)

    span, fields = 32 * kind.planes[0], 8 // kind.planes[0]

    def step(index: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        """Adds what some rows of the first plane's bytes come to: columns of the matrix, `span` apart."""
        chunk = index // (span // config.unroll)
        first = index % (span // config.unroll) * config.unroll
        group = kind.per_scale
        starts = [field * span + first for field in range(fields)]

        def read(start: Any, name: str) -> Array:
            at = chunk if name.startswith("super_") else chunk * (CHUNK // group) + start // group
            return floats(row_of(name, at))

        meanings = [scale_and_bias(parts, functools.partial(read, start)) for start in starts]
        for row in range(config.unroll):
            bytes_of = [
                row_of(name, chunk * 32 * bits + (first + row) % (32 * bits)).astype(jnp.int32)
                for name, bits in zip(plane_names(kind), kind.planes, strict=True)
            ]
            for start, (scale, bias) in zip(starts, meanings, strict=True):
                codes = [
                    (plane >> start // (32 * bits) * bits & (1 << bits) - 1) << sum(kind.planes[:i])
                    for i, (plane, bits) in enumerate(zip(bytes_of, kind.planes, strict=True))
                ]
                weights = code_values(kind, functools.reduce(jnp.bitwise_or, codes)) * scale
                weights = weights if bias is None else weights + bias
                at = chunk * CHUNK + start + row
                sums = tuple(total + x_ref[block, m, at] * weights for m, total in enumerate(sums))
        return sums

    zeros = laid_out(jnp.zeros(own.columns, jnp.float32), layout, interpreted=interpreted)
    steps = chunks * (span // config.unroll)
    begin, end = (share * steps // config.splits for share in (split, split + 1))
    sums = lax.fori_loop(begin, jnp.where(index_ref[block] < 0, begin, end), step, (zeros,) * x_ref.shape[1])
    for m, total in enumerate(sums):
        out_ref[split, block, m, pl.ds(own.first_lane + first_column, own.columns)] = total


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
    """x @ weight.T of each in float32, of at most 16 rows; activations are not rounded.

    With an index, x is [B, M, K] and each weight a stack: block b is multiplied with matrix index[b].
    """
    del act  # for kernels of integers
    operands = [Operands.of(x, weight, index, jnp.float32) for weight in weights]
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
    blocks = {each.kind.rotated: each.blocks for each in operands}
    shares = pl.kernel(
        functools.partial(_body, matrices=matrices, config=config, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((config.splits, n_blocks, n_rows, matrices[-1].end_lane), jnp.float32),
        mesh=plgpu.Mesh(grid=(n_blocks, matrices[-1].end_tile, config.splits), grid_names=("block", "tile", "split")),
        name="quant_matmul",
        **kernel_options(interpreted=interpret),
    )(
        given.numbers,
        *(blocks[rotated] for rotated in _rotations(operands)),
        *(part for each in operands for part in each.parts.values()),
    )
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
