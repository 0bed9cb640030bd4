"""Products of few rows from planes for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU), on CUDA cores.

A program takes a tile of the result's columns and a share of the depth; a thread has a few neighbouring columns, whose
bytes it loads row by row of the planes, decodes in registers and multiplies with every row of x, in float32. Neither
factor is rounded. The shares are added up afterwards, in order. What is computed for a row of x depends neither on the
rows beside it nor on how many there are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float, Int

from pallas_kernels.matmul.config import SHARES, GpuConfig, gpu_candidates, gpu_heuristic
from pallas_kernels.matmul.formats import BlockFormat
from pallas_kernels.matmul.operands import Operands, example, model_shapes
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


def _body(
    index_ref: Any, x_ref: Any, *refs: Any,
    kind: BlockFormat, names: Sequence[str], config: GpuConfig, chunks: int, interpreted: bool,
) -> None:  # fmt: skip
    parts, out_ref = dict(zip(names, refs, strict=False)), refs[-1]
    block, tile, split = lax.axis_index("block"), lax.axis_index("tile"), lax.axis_index("split")
    layout = plgpu.Layout.WG_STRIDED((config.columns,), vec_size=config.columns // WARPGROUP)
    # The last tile begins where it ends with the matrix; what two tiles have in common both write.
    columns = pl.ds(jnp.minimum(tile * config.columns, out_ref.shape[-1] - config.columns), config.columns)
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

    zeros = laid_out(jnp.zeros(config.columns, jnp.float32), layout, interpreted=interpreted)
    steps = chunks * (span // config.unroll)
    begin, end = (share * steps // config.splits for share in (split, split + 1))
    sums = lax.fori_loop(begin, jnp.where(index_ref[block] < 0, begin, end), step, (zeros,) * x_ref.shape[1])
    for m, total in enumerate(sums):
        out_ref[split, block, m, columns] = total


@functools.partial(jax.jit, static_argnames=("act", "config", "interpret"))  # references to GMEM exist under jit
def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    act: Activations,
    index: Int[Array, " B"] | None = None,
    *,
    config: GpuConfig | None = None,
    interpret: bool = False,
) -> Float[Array, "... N"]:
    """x @ weight.T in float32, of at most 16 rows; activations are not rounded.

    With an index, x is [B, M, K] and the weight a stack: block b is multiplied with matrix index[b].
    """
    del act  # for kernels of integers
    given = Operands.of(x, weight, index, jnp.float32)
    n_blocks, n_rows, _ = given.blocks.shape
    chunks, lanes = given.chunks, given.lanes
    config = config_for(TUNABLE, {"N": weight.rows, "K": weight.width, "format": weight.format}, config)
    if config.splits > SHARES * chunks or config.columns > lanes:
        raise ValueError(
            f"quant_matmul: config is {config}; accepted: at most {SHARES * chunks} splits and {lanes} columns"
        )
    body = functools.partial(_body, kind=given.kind, names=tuple(given.parts), config=config, chunks=chunks)
    shares = pl.kernel(
        functools.partial(body, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((config.splits, n_blocks, n_rows, lanes), jnp.float32),
        mesh=plgpu.Mesh(
            grid=(n_blocks, -(-lanes // config.columns), config.splits), grid_names=("block", "tile", "split")
        ),
        name="quant_matmul",
        **kernel_options(interpreted=interpret),
    )(given.numbers, given.blocks, *given.parts.values())
    return given.added(shares)


SHAPES, RUN = model_shapes(), functools.partial(quant_matmul, act="a16")
TUNABLE = Tunable("matmul.packed", "pallas_gpu", GpuConfig, gpu_heuristic, gpu_candidates, SHAPES, example, RUN)
