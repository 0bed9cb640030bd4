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

from pallas_kernels.matmul.config import GpuConfig, gpu_candidates, gpu_heuristic
from pallas_kernels.matmul.formats import FORMATS, BlockFormat
from pallas_kernels.matmul.planes import (
    CHUNK,
    GROUP,
    PLANE_FORMATS,
    code_values,
    pack,
    plane_names,
)
from pallas_kernels.matmul.qtensor import Activations, QTensor, from_blocks
from pallas_kernels.mosaic_gpu import WARPGROUP, kernel_options, load
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for, register


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

    def floats(name: str, row: Any) -> Array:
        part = row_of(name, row)
        return (lax.bitcast_convert_type(part, jnp.float16) if part.dtype == jnp.uint16 else part).astype(jnp.float32)

    def scaled(name: str, chunk: Any, row: Any, per_chunk: int) -> Array:
        numbers, above = floats(name, chunk * per_chunk + row), f"super_{name}"
        return numbers * floats(above, chunk) if above in parts else numbers

    span, fields = 32 * kind.planes[0], 8 // kind.planes[0]

    def step(index: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        """Adds what some rows of the first plane's bytes come to: columns of the matrix, `span` apart."""
        chunk = split * (chunks // config.splits) + index // (span // config.unroll)
        first = index % (span // config.unroll) * config.unroll
        group = kind.per_scale
        starts = [field * span + first for field in range(fields)]
        scales = [scaled("scales", chunk, start // group, CHUNK // group) for start in starts]
        biases = None
        if "minima" in parts:
            sign = -1 if "super_minima" in parts else 1
            biases = [sign * scaled("minima", chunk, start // GROUP, CHUNK // GROUP) for start in starts]
        for row in range(config.unroll):
            bytes_of = [
                row_of(name, chunk * 32 * bits + (first + row) % (32 * bits)).astype(jnp.int32)
                for name, bits in zip(plane_names(kind), kind.planes, strict=True)
            ]
            for field, start in enumerate(starts):
                codes = [
                    (plane >> start // (32 * bits) * bits & (1 << bits) - 1) << sum(kind.planes[:i])
                    for i, (plane, bits) in enumerate(zip(bytes_of, kind.planes, strict=True))
                ]
                weights = code_values(kind, functools.reduce(jnp.bitwise_or, codes)) * scales[field]
                weights = weights if biases is None else weights + biases[field]
                at = chunk * CHUNK + start + row
                sums = tuple(total + x_ref[block, m, at] * weights for m, total in enumerate(sums))
        return sums

    zeros = jnp.zeros(config.columns, jnp.float32)
    zeros = zeros if interpreted else plgpu.layout_cast(zeros, layout)
    steps = jnp.where(index_ref[block] < 0, 0, chunks // config.splits * (span // config.unroll))
    sums = lax.fori_loop(0, steps, step, (zeros,) * x_ref.shape[1])
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
    blocks = (x.reshape(1, -1, weight.width) if index is None else x).astype(jnp.float32)
    n_blocks, n_rows, _ = blocks.shape
    if blocks.size == 0:
        return jnp.zeros((*x.shape[:-1], weight.rows))
    kind = PLANE_FORMATS[weight.format]
    parts = weight.parts if index is not None else {name: part[None] for name, part in weight.parts.items()}
    n_matrices, plane_rows, lanes = parts["plane0"].shape
    chunks = plane_rows // (32 * kind.planes[0])
    config = config_for(TUNABLE, {"N": weight.rows, "K": weight.width, "format": weight.format}, config)
    if chunks % config.splits or config.columns > lanes:
        raise ValueError(
            f"quant_matmul: config is {config}; accepted: splits that divide {chunks}, at most {lanes} columns"
        )
    blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, chunks * CHUNK - weight.width)))
    numbers = jnp.zeros(1, jnp.int32) if index is None else jnp.minimum(index, n_matrices - 1).astype(jnp.int32)
    shares = pl.kernel(
        functools.partial(_body, kind=kind, names=tuple(parts), config=config, chunks=chunks, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((config.splits, n_blocks, n_rows, lanes), jnp.float32),
        mesh=plgpu.Mesh(
            grid=(n_blocks, -(-lanes // config.columns), config.splits), grid_names=("block", "tile", "split")
        ),
        name="quant_matmul",
        **kernel_options(interpreted=interpret),
    )(numbers, blocks, *parts.values())
    out = functools.reduce(jnp.add, [shares[i] for i in range(config.splits)])
    return out[..., : weight.rows].reshape(*x.shape[:-1], weight.rows)


def _example(dims: Dims) -> tuple[Array, QTensor]:
    blocks = jnp.ones((dims["N"], FORMATS[dims["format"]].row_bytes(dims["K"])), jnp.uint8)
    return jnp.ones((4, dims["K"])), pack(from_blocks(blocks, dims["format"]))


TUNABLE = register(
    Tunable(
        operation="matmul.packed",
        impl="pallas_gpu",
        Config=GpuConfig,
        heuristic=gpu_heuristic,
        candidates=gpu_candidates,
        platforms=frozenset({"gpu"}),
        shapes=tuple(
            {"N": n, "K": k, "format": format} for format in ("Q8_0", "Q4_K") for n, k in ((17408, 5120), (5120, 17408))
        ),
        example=_example,
        run=functools.partial(quant_matmul, act="a16"),
    )
)
