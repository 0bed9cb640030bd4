"""The kernel of attention on the tensor cores of NVIDIA's Hopper GPUs, in Pallas (Mosaic GPU): flash attention.

A program has one KV head and a block of queries: rows of neighbouring tokens with all heads that share the KV head.
One warpgroup brings tiles of keys and values into shared memory ahead of time; each of the others has 64 queries, whose
scores and weighted sums stay in its registers. Tiles that no query of the block sees are not read, and tiles that all
of them see whole are not masked. Several programs may share the tiles of a block; XLA combines what they have.

Tensor cores multiply 16-bit floats and add in float32. Caches of float16 meet queries and weights in float16, all
others in bfloat16; scores, softmax and sums are float32. Quantized caches are decoded by XLA before the kernel, whole
and once for all blocks: a copy in bfloat16, which is there while a layer is computed.

Sources: Milakov and Gimelshein, arXiv 1805.02867; Dao, "FlashAttention-2", arXiv 2307.08691; Shah et al.,
"FlashAttention-3", arXiv 2407.08608, for a warpgroup that only loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.cache_attention.blocks import Blocks
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.softmax import capped, merged
from pallas_kernels.cache_attention.visibility import as_mask, in_span, spans
from pallas_kernels.kv_formats import KVStore, format_named
from pallas_kernels.kv_formats.format import FloatFormat
from pallas_kernels.mosaic_gpu import (
    MMA_ROWS,
    SHARED_MEMORY,
    add_product,
    kernel_options,
    laid_out,
    load,
    plgpu,
    product,
    tiled_memory,
)
from pallas_kernels.table import Dims

MOST_COLUMNS = 256
"""Of the values in a program: as many sums as registers hold. Wider values are computed in parts, each with scores."""
LOG2_E = math.log2(math.e)
FOR_BARRIERS = 1024
"""Bytes of shared memory that barriers take."""
SLOTS = 8
"""What is copied into shared memory comes in multiples of so many; a cache of another size is copied by XLA first."""
REGISTERS = {1: (240, 120), 2: (224, 56), 3: (152, 56)}
"""Of each thread of the warpgroups that multiply, by their number, and of the one that loads."""


class Steps(NamedTuple):
    """How a program goes through a cache.

    Attributes:
        warpgroups: with 64 queries each: 1, 2 or 3.
        tile: slots of a step: 64 or 128.
        buffers: of keys and values in shared memory.
    """

    warpgroups: int
    tile: int
    buffers: int


def widths(dims: Dims) -> tuple[int, int, int]:
    """The widths of keys and of values in shared memory, and how many columns of the values a program has."""
    keys, values = (-(-format_named(dims[name]).stored_width(dims["N"]) // 16) * 16 for name in ("k_type", "v_type"))
    parts = -(-values // MOST_COLUMNS)
    columns = -(-values // (16 * parts)) * 16
    return keys, columns * parts, columns


def misfit(steps: Steps, dims: Dims) -> bool:
    """Whether what a program holds is more than shared memory, or more than registers."""
    keys, _, columns = widths(dims)
    values = steps.warpgroups * MMA_ROWS * keys + steps.buffers * steps.tile * (keys + columns)
    of_scores_and_sums = 256 + 64 if steps.warpgroups < 3 else 128
    return 2 * values + FOR_BARRIERS > SHARED_MEMORY or steps.tile + columns > of_scores_and_sums


def no_16_bits(dims: Dims) -> str | None:
    """Why tensor cores cannot multiply what caches hold, or None."""
    for name in ("k_type", "v_type"):
        if dims[name] == "f32":
            return f"{name}=f32: tensor cores multiply numbers of 16 bits"
    return None


@dataclass(frozen=True)
class _Shape:
    """The static settings of a kernel, besides the shapes of its arguments."""

    steps: Steps
    columns: int
    capacity: int
    scale: float
    soft_cap: float | None
    interpreted: bool


class _Given(NamedTuple):
    """What a kernel reads, and its outputs, in the GPU's memory: highest scores, totals of weights, and sums."""

    q: Any
    k: Any
    v: Any
    counts: Any
    tiles: Any
    own: Any
    reach: Any
    seen: Any
    highest: Any
    total: Any
    sums: Any


class _Shared(NamedTuple):
    """Shared memory of a program, and barriers: what is there, and what is not needed any more."""

    q: Any
    k: Any
    v: Any
    q_here: Any
    k_here: Any
    v_here: Any
    k_done: Any
    v_done: Any
    v_copied: Any


def _body(*refs: Any, shape: _Shape) -> None:
    given, steps = _Given(*refs), shape.steps

    def run(*scoped: Any) -> None:
        warpgroup = lax.axis_index("warpgroup")
        multiplying, loading = REGISTERS[steps.warpgroups]

        @pl.when(warpgroup < steps.warpgroups)
        def multiply() -> None:
            plgpu.set_max_registers(multiplying, action="increase")
            _multiply(given, _Shared(*scoped), shape)

        @pl.when(warpgroup == steps.warpgroups)
        def bring() -> None:
            plgpu.set_max_registers(loading, action="decrease")
            _load(given, _Shared(*scoped), shape)

    shared = _Shared(
        q=tiled_memory((steps.warpgroups, MMA_ROWS, given.q.shape[-1]), given.q.dtype),
        k=tiled_memory((steps.buffers, steps.tile, given.k.shape[-1]), given.k.dtype),
        v=tiled_memory((steps.buffers, steps.tile, shape.columns), given.v.dtype),
        q_here=plgpu.Barrier(num_barriers=steps.warpgroups),
        k_here=plgpu.Barrier(num_barriers=steps.buffers),
        v_here=plgpu.Barrier(num_barriers=steps.buffers),
        k_done=plgpu.Barrier(num_arrivals=steps.warpgroups, num_barriers=steps.buffers),
        v_done=plgpu.Barrier(num_arrivals=steps.warpgroups, num_barriers=steps.buffers),
        v_copied=plgpu.Barrier(),
    )
    pl.run_scoped(run, *shared, collective_axes="warpgroup")


class _Place(NamedTuple):
    """Sequence, KV head, block and split of a program, and the columns of the values."""

    row: Any
    head: Any
    block: Any
    split: Any
    columns: Any


def _place(given: _Given, shape: _Shape) -> _Place:
    """Blocks that read most, which are the last ones, go first."""
    block = given.counts.shape[1] - 1 - lax.axis_index("block")
    columns = pl.ds(lax.axis_index("part") * shape.columns, shape.columns)
    return _Place(lax.axis_index("row"), lax.axis_index("head"), block, lax.axis_index("split"), columns)


def _first_slot(code: Array, shape: _Shape, given: _Given) -> tuple[Array, Array]:
    """Of a tile: where it begins, and where its copy in shared memory does, which ends with the cache."""
    first = (code >> 1) * shape.steps.tile
    return first, jnp.minimum(first, given.k.shape[1] - shape.steps.tile)


def _buffer(index: Array, code: Array, buffers: int) -> Array:
    """The buffer that a step uses. If the compiler knew that there is only one, it would keep the addresses of all
    products in registers.
    """
    return lax.rem(index, buffers) if buffers > 1 else jnp.minimum(code, 0)


def _load(given: _Given, shared: _Shared, shape: _Shape) -> None:
    """Brings tiles into shared memory."""
    (row, head, block, split, columns), steps = _place(given, shape), shape.steps

    def step(index: Array, nothing: None) -> None:
        code = given.tiles[row, block, split, index]
        buffer = _buffer(index, code, steps.buffers)
        _, start = _first_slot(code, shape, given)
        slots, again = pl.ds(start, steps.tile), index >= steps.buffers
        k, v = given.k.at[row, slots, head], given.v.at[row, slots, head, columns]
        pl.when(again)(lambda: plgpu.barrier_wait(shared.k_done.at[buffer]))
        plgpu.copy_gmem_to_smem(k, shared.k.at[buffer], shared.k_here.at[buffer])
        pl.when(again)(lambda: plgpu.barrier_wait(shared.v_done.at[buffer]))

        @pl.when(code & 1 == 1)
        def whole() -> None:
            plgpu.copy_gmem_to_smem(v, shared.v.at[buffer], shared.v_here.at[buffer])

        @pl.when(code & 1 == 0)
        def partly() -> None:
            plgpu.copy_gmem_to_smem(v, shared.v.at[buffer], shared.v_copied)
            plgpu.barrier_wait(shared.v_copied)
            clear(buffer, start)
            plgpu.commit_smem()
            plgpu.barrier_arrive(shared.v_here.at[buffer])

    def clear(buffer: Array, start: Array) -> None:
        """What no row sees may be anything, and a weight of zero times anything is not always zero."""
        layout, width = plgpu.Layout.WGMMA, min(64, shape.columns & -shape.columns)
        for at in range(0, steps.tile, MMA_ROWS):
            seen = given.seen.at[row, pl.ds(start + at, MMA_ROWS)]
            seen = load(seen, layout.reduce(1), interpreted=shape.interpreted)
            seen = lax.broadcast_in_dim(seen, (MMA_ROWS, width), (0,))
            for column in range(0, shape.columns, width):
                part = shared.v.at[buffer, pl.ds(at, MMA_ROWS), pl.ds(column, width)]
                values = load(part, layout, interpreted=shape.interpreted)
                part[...] = jnp.where(seen > 0, values, jnp.zeros_like(values))

    def drain(index: Array, nothing: None) -> None:
        """Wait for the remaining barriers: a program that has waited for a barrier once must do so each time."""
        plgpu.barrier_wait(shared.k_done.at[lax.rem(index, steps.buffers)])
        plgpu.barrier_wait(shared.v_done.at[lax.rem(index, steps.buffers)])

    count = given.counts[row, block, split]
    lax.fori_loop(0, count, step, None)
    lax.fori_loop(jnp.maximum(count - steps.buffers, 0), count, drain, None)


def _multiply(given: _Given, shared: _Shared, shape: _Shape) -> None:
    """64 queries: softmax over the tiles, and the weighted values."""
    (row, head, block, split, columns), steps = _place(given, shape), shape.steps
    warpgroup = lax.axis_index("warpgroup")
    queries = pl.ds((block * steps.warpgroups + warpgroup) * MMA_ROWS, MMA_ROWS)
    q = shared.q.at[warpgroup]

    def loaded(ref: Any) -> Array:
        return load(ref, plgpu.Layout.WGMMA.reduce(1), interpreted=shape.interpreted)

    def spread(x: Array, width: int) -> Array:
        return lax.broadcast_in_dim(x, (MMA_ROWS, width), (0,))

    plgpu.copy_gmem_to_smem(given.q.at[row, head, queries], q, shared.q_here.at[warpgroup])
    own, reach = loaded(given.own.at[row, queries]), loaded(given.reach.at[row, queries])
    plgpu.barrier_wait(shared.q_here.at[warpgroup])

    def masked(scores: Array, code: Array) -> Array:
        first, start = _first_slot(code, shape, given)
        slots = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        slots = laid_out(slots, plgpu.Layout.WGMMA, interpreted=shape.interpreted) + start
        seen = in_span(spread(own, steps.tile), spread(reach, steps.tile), slots, shape.capacity)
        # The last tile may begin in the one before, or the cache end before it does.
        seen = seen & (slots >= first) & (slots < shape.capacity)
        return jnp.where(seen, scores, -jnp.inf)

    def step(index: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, sums = state
        code = given.tiles[row, block, split, index]
        buffer = _buffer(index, code, steps.buffers)
        plgpu.barrier_wait(shared.k_here.at[buffer])
        scores = product(q, shared.k.at[buffer], interpreted=shape.interpreted)
        plgpu.barrier_arrive(shared.k_done.at[buffer])
        if shape.soft_cap is None:
            scores = scores * (shape.scale * LOG2_E)
        else:
            scores = capped(scores * shape.scale, shape.soft_cap) * LOG2_E
        scores = lax.cond(code & 1 == 1, lambda scores: scores, lambda scores: masked(scores, code), scores)
        now = jnp.maximum(highest, jnp.max(scores, axis=1))
        base = jnp.where(now == -jnp.inf, 0.0, now)
        weights = jnp.exp2(scores - spread(base, steps.tile))
        fade = jnp.exp2(highest - base)
        total = total * fade + jnp.sum(weights, axis=1)
        sums = sums * spread(fade, shape.columns)
        plgpu.barrier_wait(shared.v_here.at[buffer])
        weights = weights.astype(given.v.dtype)
        sums = add_product(sums, weights, shared.v.at[buffer], interpreted=shape.interpreted)
        plgpu.barrier_arrive(shared.v_done.at[buffer])
        return now, total, sums

    def filled(value: float, *width: int) -> Array:
        layout = plgpu.Layout.WGMMA if width else plgpu.Layout.WGMMA.reduce(1)
        return laid_out(jnp.full((MMA_ROWS, *width), value, jnp.float32), layout, interpreted=shape.interpreted)

    start = filled(-jnp.inf), filled(0.0), filled(0.0, shape.columns)
    highest, total, sums = lax.fori_loop(0, given.counts[row, block, split], step, start)
    given.sums[row, head, split, queries, columns] = sums

    @pl.when(lax.axis_index("part") == 0)
    def of_all_columns() -> None:
        given.highest[row, head, split, queries] = highest
        given.total[row, head, split, queries] = total


def _sixteen_bits(store: KVStore, width: int, slots: int) -> Array:
    """[B, slots, G, width]: entries as they are kept, padded with zeros, in a type of tensor cores."""
    kind = store.kind
    floats = kind.floats(store.parts) if isinstance(kind, FloatFormat) else store.rotated().astype(jnp.bfloat16)
    missing = [(0, 0), (0, slots - floats.shape[1]), (0, 0), (0, width - floats.shape[3])]
    return jnp.pad(floats, missing)


def attention(name: str, call: Call, steps: Steps, splits: int, *, interpret: bool) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing.

    Args:
        name: of the kernel in programs and profiles.
        call: see there.
        steps: how a program goes through the cache; what `misfit` says of them is for the caller to ask.
        splits: how many programs share the tiles of a block; each has every n-th one.
        interpret: whether the kernel runs in its interpreter.
    """
    (batch, tokens, heads, width), (_, capacity, kv_heads, _) = call.q.shape, call.k.shape
    dims, v, window = call.sizes("T"), call.v, call.window
    key_width, value_width, columns = widths(dims)
    blocks = Blocks(tokens, heads, kv_heads, steps.warpgroups * MMA_ROWS)
    slots = max(-(-capacity // SLOTS) * SLOTS, steps.tile)
    keys, values = _sixteen_bits(call.k, key_width, slots), _sixteen_bits(v, value_width, slots)
    queries = blocks.split(call.rotated_queries().astype(keys.dtype))
    queries = jnp.pad(queries, [(0, 0)] * 3 + [(0, key_width - queries.shape[-1])])
    at = blocks.positions(call.positions)
    # A query of no row sees what the last one of its block sees: otherwise no tile of the block would be seen whole.
    among = blocks.latest(at)
    own, reach = spans(among, capacity, window)
    counts, tiles = blocks.tiles(among, steps.tile, capacity, window, splits)
    seen = jnp.any(as_mask(call.positions, capacity, window), axis=1).astype(jnp.int32)
    seen = jnp.pad(seen, ((0, 0), (0, slots - capacity)))
    parts = batch, kv_heads, splits, queries.shape[2]
    kernel = pl.kernel(
        partial(_body, shape=_Shape(steps, columns, capacity, call.scale, call.soft_cap, interpret)),
        out_type=(
            jax.ShapeDtypeStruct(parts, jnp.float32),
            jax.ShapeDtypeStruct(parts, jnp.float32),
            jax.ShapeDtypeStruct((*parts, value_width), jnp.float32),
        ),
        mesh=plgpu.Mesh(
            grid=(batch, kv_heads, value_width // columns, splits, blocks.count),
            grid_names=("row", "head", "part", "split", "block"),
            num_threads=steps.warpgroups + 1,
            thread_name="warpgroup",
        ),
        name=name,
        **kernel_options(interpreted=interpret),
    )
    found = kernel(queries, keys, values, counts, tiles, own, reach, seen)
    # What belongs to no row is most of it where there are few rows.
    highest, total, sums = (jnp.moveaxis(x[:, :, :, : blocks.queries], 2, 3) for x in found)
    logits = blocks.split(jnp.broadcast_to(call.logits(), (1, tokens, heads)))[:, :, : blocks.queries]
    out = merged(highest / LOG2_E, total, sums, logits)
    out = jnp.where((at < 0)[:, None, : blocks.queries, None], 0, out)
    return v.kind.unrotate(blocks.merge(out)[..., : v.kind.stored_width(width)], width)
