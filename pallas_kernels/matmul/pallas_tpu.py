"""Products from planes for TPU, in Pallas (Mosaic).

The grid walks blocks of rows, tiles of the result's columns, and tiles of the depth; a chunk of 256 columns of the
matrix is decoded at a time. Few rows and many take two forms, both of which round neither factor:

- Few rows: codes are integers that bfloat16 holds, so they enter the MXU as they are, once. What meets them is x in
  three bfloat16 parts that add up to it, and each group of columns that share a scale has rows of its own, zero
  elsewhere: 128 columns by 3 * 4 * M rows (3 * 8 * M where scales are for 16), which the MXU takes while it would
  otherwise wait for the codes. Scales multiply the products, not the codes. Codes of rotated formats stand for floats,
  which enter in three parts as well.
- Many rows: the decoded values, float32, by x at the highest precision.

Sums run over chunks in order, in float32: what is computed for a row depends neither on the rows beside it nor on the
block sizes, as long as the form is the same.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float, Int

from pallas_kernels.elementwise import float_of_half
from pallas_kernels.matmul.config import FEW_ROWS, TpuConfig, tpu_candidates, tpu_heuristic
from pallas_kernels.matmul.formats import BlockFormat
from pallas_kernels.matmul.operands import Operands, example, model_shapes, num_rows, wrong_layout
from pallas_kernels.matmul.planes import (
    CHUNK,
    GROUP,
    LANES,
    chunk_codes,
    code_values,
    plane_names,
    scale_and_bias,
)
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for


def unfit(dims: Dims) -> str | None:
    """Why the kernel cannot serve a call."""
    fits = None if tpu_candidates(dims) else f"K={dims['K']} leaves no blocks that fit into VMEM"
    return wrong_layout(dims) or fits


def _floats(part: Array) -> Array:
    """Scales as they lie in planes, as float32: halves from their bits, or small integers."""
    integers = part.astype(jnp.int32)
    return float_of_half(integers) if part.dtype == jnp.uint16 else integers.astype(jnp.float32)


def _parts_of(x: Array) -> tuple[Array, Array, Array]:
    """Three float32 arrays that add up to x exactly, each of which bfloat16 can hold."""

    def head(x: Array) -> Array:  # by its bits: compilers may drop a conversion there and back
        return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & -(1 << 16), jnp.float32)

    high = head(x)
    middle = head(x - high)
    return high, middle, x - high - middle


def _few_rows(x: Array, values: Array, scale: Array, kind: BlockFormat) -> Array:
    """[M, 128] by what codes stand for [128, tile], of which each group has a scale [groups, tile]."""
    groups = len(scale)
    # Mosaic's // wants to know the chip.
    group = lax.div(lax.broadcasted_iota(jnp.int32, x.shape, 1), LANES // groups)
    rows = [jnp.where(group == i, part, 0) for part in _parts_of(x) for i in range(groups)]
    stacked = jnp.concatenate(rows, axis=0).astype(jnp.bfloat16)
    factors = reversed(_parts_of(values)) if kind.rotated else (values,)
    products = functools.reduce(
        jnp.add, [jnp.dot(stacked, each.astype(jnp.bfloat16), preferred_element_type=jnp.float32) for each in factors]
    )
    high, middle, low = products.reshape(3, groups, len(x), -1)
    scaled = (low + middle + high) * scale[:, None]
    return functools.reduce(jnp.add, [scaled[i] for i in range(groups)])


def _group_sums(x: Array) -> Array:
    """[rows, K'] -> sums over groups of columns [K'/256, rows, 8], in an order that depends on nothing."""
    sums = x.reshape(len(x), -1, CHUNK // GROUP, GROUP)
    while (half := sums.shape[-1] // 2) > 0:
        sums = sums[..., :half] + sums[..., half:]
    return jnp.swapaxes(sums[..., 0], 0, 1)


def _body(index_ref, x_ref, *refs: Any, kind: BlockFormat, few: bool, names: Sequence[str], scaling: Sequence[str]):
    parts = dict(zip(names, refs, strict=False))
    out_ref, *scratch = refs[len(names) :]
    floats = dict(zip(scaling, scratch, strict=True))
    block, tile = pl.program_id(0), pl.program_id(2)
    n_chunks = x_ref.shape[1] // CHUNK

    @pl.when(tile == 0)
    def _start():
        out_ref[...] = jnp.zeros_like(out_ref)

    def add_chunk(chunk: Array, total: Array) -> Array:
        bytes_of = [
            parts[name][pl.ds(pl.multiple_of(chunk * 32 * bits, 32 * bits), 32 * bits), :].astype(jnp.int32)
            for name, bits in zip(plane_names(kind), kind.planes, strict=True)
        ]
        values = code_values(kind, chunk_codes(kind, bytes_of))
        x = x_ref[:, pl.ds(pl.multiple_of(chunk * CHUNK, CHUNK), CHUNK)]
        groups = CHUNK // kind.per_scale

        def read(name: str) -> Array:
            if name.startswith("super_"):
                return floats[name][pl.ds(tile * n_chunks + chunk, 1), :]
            return floats[name][pl.ds(pl.multiple_of(chunk * groups, groups), groups), :]

        scale, bias = scale_and_bias(floats, read)
        if not few:
            values = values.reshape(len(scale), -1, values.shape[-1]) * scale[:, None]
            values = values if bias is None else values + bias[:, None]
            weights = values.reshape(CHUNK, -1)
            return total + jnp.dot(x, weights, precision="highest", preferred_element_type=jnp.float32)
        half = len(scale) // 2
        total += _few_rows(x[:, :LANES], values[:LANES], scale[:half], kind)
        total += _few_rows(x[:, LANES:], values[LANES:], scale[half:], kind)
        if bias is None:
            return total
        sums = parts["sums"][chunk]
        return total + functools.reduce(jnp.add, [sums[:, i : i + 1] * bias[i : i + 1] for i in range(len(bias))])

    @pl.when(index_ref[block] >= 0)
    def _accumulate():
        for name, ref in floats.items():
            ref[...] = _floats(parts[name][...])
        out_ref[...] = lax.fori_loop(0, n_chunks, add_chunk, out_ref[...])


def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    act: Activations,
    index: Int[Array, " B"] | None = None,
    *,
    config: TpuConfig | None = None,
    interpret: bool = False,
) -> Float[Array, "... N"]:
    """x @ weight.T in float32; activations are not rounded.

    With an index, x is [B, M, K] and the weight a stack: block b is multiplied with matrix index[b].
    """
    del act  # for kernels of integers
    sizes = {"M": num_rows(x, index), "N": weight.rows, "K": weight.width, "format": weight.format}
    return _multiply(x, weight, index, config_for(TUNABLE, sizes, config), interpret)


# A function of the program, which matrices of one shape share: the kernel is built once for all layers that are alike.
@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _multiply(x: Array, weight: QTensor, index: Array | None, config: TpuConfig, interpret: bool) -> Array:
    given = Operands.of(x, weight, index, jnp.float32)
    (n_blocks, n_rows, depth), parts, lanes = given.blocks.shape, given.parts, given.lanes
    few = n_rows <= FEW_ROWS
    if depth % config.depth:
        raise ValueError(f"quant_matmul: config.depth is {config.depth}; accepted: divisors of {depth}")
    # Rows become whole tiles; all tiles of a block take its number.
    tiles = -(-n_rows // config.rows)
    blocks = jnp.pad(given.blocks, ((0, 0), (0, tiles * config.rows - n_rows), (0, 0))).reshape(-1, depth)
    scaling = [name for name in parts if not name.startswith("plane")]

    def tile_rows(name: str) -> int:  # of super scales there are too few for tiles
        rows = parts[name].shape[1]
        return rows if name.startswith("super_") else rows * config.depth // depth

    def part_spec(name: str) -> pl.BlockSpec:
        tiled = tile_rows(name) < parts[name].shape[1]
        return pl.BlockSpec(
            (None, tile_rows(name), config.columns),
            lambda b, n, k, index: (jnp.maximum(index[b], 0), k if tiled else 0, n),
        )

    inputs = {name: (part, part_spec(name)) for name, part in parts.items()}
    if few and "minima" in parts:
        block = (config.depth // CHUNK, config.rows, CHUNK // GROUP)
        inputs["sums"] = _group_sums(blocks), pl.BlockSpec(block, lambda b, n, k, index: (k, b, 0))
    out = pl.pallas_call(
        functools.partial(_body, kind=given.kind, few=few, names=tuple(inputs), scaling=scaling),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n_blocks * tiles, -(-lanes // config.columns), depth // config.depth),
            in_specs=[
                pl.BlockSpec((config.rows, config.depth), lambda b, n, k, index: (b, k)),
                *(spec for _, spec in inputs.values()),
            ],
            out_specs=pl.BlockSpec((config.rows, config.columns), lambda b, n, k, index: (b, n)),
            scratch_shapes=[pltpu.VMEM((tile_rows(name), config.columns), jnp.float32) for name in scaling],
        ),
        out_shape=jax.ShapeDtypeStruct((n_blocks * tiles * config.rows, lanes), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="quant_matmul",
    )(jnp.repeat(given.numbers, tiles), blocks, *(array for array, _ in inputs.values()))
    return given.result(out.reshape(n_blocks, tiles * config.rows, lanes))


SHAPES, RUN = model_shapes(1, 4, 16, 512), functools.partial(quant_matmul, act="a16")
TUNABLE = Tunable("matmul.packed", "pallas_tpu", TpuConfig, tpu_heuristic, tpu_candidates, SHAPES, example, RUN)
