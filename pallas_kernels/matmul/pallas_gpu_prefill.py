"""Products of many rows from planes for NVIDIA's Hopper GPUs, in Pallas (Mosaic GPU), on tensor cores.

A program takes a tile of the result and goes through the depth, a chunk of 256 at a time. One warpgroup brings in the
packed columns of the matrix, decodes 64 of them at a time and puts them into shared memory in bfloat16, together with
the same columns of x; the others multiply (wgmma) and keep sums in registers, in float32. Both factors are so rounded
to bfloat16. What is computed for a row of x does not depend on the rows beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from pallas_kernels.block_sizes import BlockSizes, one_of
from pallas_kernels.matmul.formats import BlockFormat
from pallas_kernels.matmul.operands import Operands, example, model_shapes
from pallas_kernels.matmul.planes import (
    CHUNK,
    LANES,
    code_values,
    floats,
    plane_names,
    scale_and_bias,
)
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.mosaic_gpu import MMA_ROWS, kernel_options, laid_out, load, plgpu, tiled_memory
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

DEPTH = 64
"""Columns of the matrix that are decoded, and multiplied, together."""
PIECES = CHUNK // DEPTH
BUFFERS = 3
"""How many buffers the factors have: one is filled, one is multiplied, one is spare. Packed chunks have two."""
REGISTERS = {1: (240, 240), 2: (208, 88)}
"""Of each thread of the warpgroups that multiply, by their number, and of the one that decodes."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """The tile of a program, which has 128 columns of the result. It does not change a result.

    Attributes:
        warpgroups: that multiply: 1 or 2.
        rows: of each: 64 or 128.
    """

    warpgroups: int = one_of(*REGISTERS)
    rows: int = one_of(MMA_ROWS, 2 * MMA_ROWS)

    @property
    def tile(self) -> int:
        """How many rows of x a program takes."""
        return self.warpgroups * self.rows


def candidates(dims: Dims) -> list[Config]:
    """Every config that there is: none depends on the sizes."""
    return [Config(warpgroups, rows) for warpgroups in REGISTERS for rows in (MMA_ROWS, 2 * MMA_ROWS)]


PROGRAMS = 132
"""How many programs keep an H100 busy: one for each multiprocessor."""


def heuristic(dims: Dims) -> Config:
    """The tallest tile that keeps every multiprocessor busy: a matrix is decoded anew for each tile of rows."""

    def programs(config: Config) -> int:
        return -(-dims["N"] // LANES) * -(-dims["M"] // config.tile)

    fitting = [config for config in candidates(dims) if config.tile <= -(-dims["M"] // MMA_ROWS) * MMA_ROWS]
    busy = [config for config in fitting if programs(config) >= PROGRAMS]
    tile = max(config.tile for config in busy) if busy else MMA_ROWS
    return max((config for config in fitting if config.tile == tile), key=lambda config: config.warpgroups)


class _Given(NamedTuple):
    """What a kernel reads, and its output, in the GPU's memory."""

    index: Any
    x: Any
    packed: dict[str, Any]
    out: Any


class _Shared(NamedTuple):
    """Shared memory of a program, and barriers: what is there, and what is not needed any more."""

    x: Any
    weights: Any
    packed: dict[str, Any]
    x_here: Any
    weights_here: Any
    packed_here: Any
    done: Any


def _body(*refs: Any, kind: BlockFormat, names: Sequence[str], config: Config, interpreted: bool) -> None:
    index, x, *parts, out = refs
    given = _Given(index, x, dict(zip(names, parts, strict=True)), out)
    chunks = x.shape[2] // CHUNK
    steps = jnp.where(index[lax.axis_index("block")] < 0, 0, chunks)

    def run(shared: _Shared) -> None:
        warpgroup = lax.axis_index("warpgroup")
        multiplying, decoding = REGISTERS[config.warpgroups]

        @pl.when(warpgroup < config.warpgroups)
        def multiply() -> None:
            plgpu.set_max_registers(multiplying, action="increase")
            _multiply(given, shared, config, steps * PIECES)

        @pl.when(warpgroup == config.warpgroups)
        def decode() -> None:
            plgpu.set_max_registers(decoding, action="decrease")
            _decode(given, shared, kind, config, steps, interpreted)

    packed = {name: plgpu.SMEM((2, part.shape[1] // chunks, LANES), part.dtype) for name, part in given.packed.items()}
    shared = _Shared(
        x=tiled_memory((BUFFERS, config.tile, DEPTH), jnp.bfloat16),
        weights=tiled_memory((BUFFERS, DEPTH, LANES), jnp.bfloat16),
        packed=packed,
        x_here=plgpu.Barrier(num_barriers=BUFFERS),
        weights_here=plgpu.Barrier(num_barriers=BUFFERS),
        packed_here=plgpu.Barrier(num_arrivals=len(packed), num_barriers=2),
        done=plgpu.Barrier(num_arrivals=config.warpgroups, num_barriers=BUFFERS),
    )
    pl.run_scoped(run, shared, collective_axes="warpgroup")


def _decode(
    given: _Given, shared: _Shared, kind: BlockFormat, config: Config, chunks: Array, interpreted: bool
) -> None:
    """Brings in the columns of the matrix and of x."""
    block, matrix = lax.axis_index("block"), jnp.maximum(given.index[lax.axis_index("block")], 0)
    columns = pl.ds(lax.axis_index("column") * LANES, LANES)
    rows = pl.ds(lax.axis_index("row") * config.tile, config.tile)
    # Eight neighbouring columns of the result a thread, and a row of 128 for half a warp.
    layout = plgpu.Layout.TILED(
        plgpu.Tiling(((8, LANES), (2, LANES), (8,))), warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1
    )

    def fetch(chunk: Array) -> None:
        buffer = lax.rem(chunk, 2)
        for name, part in given.packed.items():
            target = shared.packed[name].at[buffer]
            source = part.at[matrix, pl.ds(chunk * target.shape[0], target.shape[0]), columns]
            plgpu.copy_gmem_to_smem(source, target, shared.packed_here.at[buffer])

    def read(buffer: Array, group: int, name: str) -> Array:
        row = 0 if name.startswith("super_") else group
        return floats(load(shared.packed[name].at[buffer, row], layout.reduce(0), interpreted=interpreted))

    def spread(x: Array, count: int) -> Array:
        return laid_out(lax.broadcast_in_dim(x, (count, LANES), (1,)), layout, interpreted=interpreted)

    def group(buffer: Array, start: int, count: int) -> Array:
        """Some columns of a chunk, which have one scale."""
        codes, shift = [], 0
        for name, bits in zip(plane_names(kind), kind.planes, strict=True):
            field, first = divmod(start, 32 * bits)
            plane = load(shared.packed[name].at[buffer, pl.ds(first, count)], layout, interpreted=interpreted)
            codes.append((plane.astype(jnp.int32) >> field * bits & (1 << bits) - 1) << shift)
            shift += bits
        scale, bias = scale_and_bias(shared.packed, functools.partial(read, buffer, start // count))
        values = code_values(kind, functools.reduce(jnp.bitwise_or, codes)) * spread(scale, count)
        return values if bias is None else values + spread(bias, count)

    def step(chunk: Array, nothing: None) -> None:
        buffer = lax.rem(chunk, 2)
        pl.when(chunk + 1 < chunks)(lambda: fetch(chunk + 1))
        plgpu.barrier_wait(shared.packed_here.at[buffer])
        for piece in range(PIECES):
            index = chunk * PIECES + piece
            slot = lax.rem(index, BUFFERS)
            pl.when(index >= BUFFERS)(functools.partial(plgpu.barrier_wait, shared.done.at[slot]))
            source = given.x.at[block, rows, pl.ds(index * DEPTH, DEPTH)]
            plgpu.copy_gmem_to_smem(source, shared.x.at[slot], shared.x_here.at[slot])
            count = kind.per_scale
            for first in range(0, DEPTH, count):
                values = group(buffer, piece * DEPTH + first, count)
                shared.weights[slot, pl.ds(first, count)] = values.astype(jnp.bfloat16)
            plgpu.commit_smem()
            plgpu.barrier_arrive(shared.weights_here.at[slot])

    def drain(index: Array, nothing: None) -> None:
        """Wait for the remaining barriers: a program that has waited for a barrier once must do so each time."""
        plgpu.barrier_wait(shared.done.at[lax.rem(index, BUFFERS)])

    pl.when(chunks > 0)(lambda: fetch(jnp.int32(0)))
    lax.fori_loop(0, chunks, step, None)
    lax.fori_loop(jnp.maximum(chunks * PIECES - BUFFERS, 0), chunks * PIECES, drain, None)


def _multiply(given: _Given, shared: _Shared, config: Config, steps: Array) -> None:
    """Sums for the rows of a warpgroup."""
    first = lax.axis_index("warpgroup") * config.rows

    def run(acc_ref: Any) -> Array:
        def step(index: Array, nothing: None) -> None:
            slot = lax.rem(index, BUFFERS)
            plgpu.barrier_wait(shared.x_here.at[slot])
            plgpu.barrier_wait(shared.weights_here.at[slot])
            plgpu.wgmma(acc_ref, shared.x.at[slot, pl.ds(first, config.rows)], shared.weights.at[slot])
            plgpu.wgmma_wait(1)  # for the one before
            pl.when(index > 0)(lambda: plgpu.barrier_arrive(shared.done.at[lax.rem(index - 1, BUFFERS)]))

        lax.fori_loop(0, steps, step, None)
        sums = acc_ref[...]
        pl.when(steps > 0)(lambda: plgpu.barrier_arrive(shared.done.at[lax.rem(steps - 1, BUFFERS)]))
        return sums

    rows = pl.ds(lax.axis_index("row") * config.tile + first, config.rows)
    columns = pl.ds(lax.axis_index("column") * LANES, LANES)
    given.out[lax.axis_index("block"), rows, columns] = pl.run_scoped(run, plgpu.ACC((config.rows, LANES)))


@functools.partial(jax.jit, static_argnames=("act", "config", "interpret"))  # references to GMEM exist under jit
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
    given = Operands.of(x, weight, index, jnp.bfloat16)
    n_blocks, n_rows, _ = given.blocks.shape
    config = config_for(TUNABLE, {"M": n_rows, "N": weight.rows, "K": weight.width, "format": weight.format}, config)
    blocks = jnp.pad(given.blocks, ((0, 0), (0, -n_rows % config.tile), (0, 0)))
    body = functools.partial(_body, kind=given.kind, names=tuple(given.parts), config=config)
    out = pl.kernel(
        functools.partial(body, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((*blocks.shape[:2], given.lanes), jnp.float32),
        mesh=plgpu.Mesh(
            grid=(n_blocks, given.lanes // LANES, blocks.shape[1] // config.tile),
            grid_names=("block", "column", "row"),
            num_threads=config.warpgroups + 1,
            thread_name="warpgroup",
        ),
        name="quant_matmul_prefill",
        **kernel_options(interpreted=interpret),
    )(given.numbers, blocks, *given.parts.values())
    return given.result(out)


SHAPES, RUN = model_shapes(512), functools.partial(quant_matmul, act="a16")
TUNABLE = Tunable("matmul.packed", "pallas_gpu_prefill", Config, heuristic, candidates, SHAPES, example, RUN)
