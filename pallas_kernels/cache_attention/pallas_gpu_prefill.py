"""Attention of many rows for NVIDIA's Hopper GPUs, in Pallas (Mosaic GPU), on tensor cores (flash attention).

A program has one KV head and a block of queries: rows of neighbouring tokens with all heads that share the KV head.
One warpgroup brings tiles of keys and values into shared memory ahead of time; each of the others has 64 queries, whose
scores and weighted sums stay in its registers. Tiles that no query of the block sees are not read, and tiles that all
of them see whole are not masked.

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
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.block_sizes import BlockSizes, one_of
from pallas_kernels.cache_attention.blocks import Blocks
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.softmax import capped
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
    product,
    tiled_memory,
)
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

MOST_COLUMNS = 256
"""Of the values in a program: as many sums as registers hold. Wider values are computed in parts, each with scores."""
LOG2_E = math.log2(math.e)
FOR_BARRIERS = 1024
"""Bytes of shared memory that barriers take."""
SLOTS = 8
"""What is copied into shared memory comes in multiples of so many; a cache of another size is copied by XLA first."""
REGISTERS = {1: (240, 120), 2: (224, 56), 3: (152, 56)}
"""Of each thread of the warpgroups that multiply, by their number, and of the one that loads."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """Block sizes.

    Attributes:
        warpgroups: with 64 queries each: 1, 2 or 3.
        tile: slots of a step: 64 or 128.
        buffers: of keys and values in shared memory.
    """

    warpgroups: int = one_of(*REGISTERS)
    tile: int = one_of(64, 128)
    buffers: int = one_of(1, 2, 3, 4)


def _widths(dims: Dims) -> tuple[int, int, int]:
    """The widths of keys and of values in shared memory, and how many columns of the values a program has."""
    keys, values = (-(-format_named(dims[name]).stored_width(dims["N"]) // 16) * 16 for name in ("k_type", "v_type"))
    parts = -(-values // MOST_COLUMNS)
    columns = -(-values // (16 * parts)) * 16
    return keys, columns * parts, columns


def _bytes(config: Config, keys: int, columns: int) -> int:
    """The bytes of shared memory that a program needs."""
    return 2 * (config.warpgroups * MMA_ROWS * keys + config.buffers * config.tile * (keys + columns)) + FOR_BARRIERS


def candidates(dims: Dims) -> list[Config]:
    """Those that fit into shared memory, and whose scores fit into registers beside the sums."""
    keys, _, columns = _widths(dims)
    return [
        config
        for warpgroups in REGISTERS
        for tile in (64, 128)
        if tile + columns <= (256 + 64 if warpgroups < 3 else 128)
        for buffers in (1, 2, 3, 4)
        if _bytes(config := Config(warpgroups, tile, buffers), keys, columns) <= SHARED_MEMORY
    ]


def heuristic(dims: Dims) -> Config:
    """Two tiles in memory before two blocks of queries before more slots: loads have to go on during products."""
    return max(
        (config for config in candidates(dims) if config.warpgroups < 3),
        key=lambda config: (min(config.buffers, 2), config.warpgroups, config.tile, config.buffers),
    )


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    for name in ("k_type", "v_type"):
        if dims[name] == "f32":
            return f"{name}=f32: tensor cores multiply numbers of 16 bits"
    if not candidates(dims):
        return f"N={dims['N']}: queries, keys and values do not fit into {SHARED_MEMORY // 1024} KiB of shared memory"
    return None


@dataclass(frozen=True)
class _Shape:
    """The static settings of a kernel, besides the shapes of its arguments."""

    config: Config
    columns: int
    capacity: int
    scale: float
    soft_cap: float | None
    interpreted: bool


class _Given(NamedTuple):
    """What a kernel reads, and its output, in the GPU's memory."""

    q: Any
    k: Any
    v: Any
    counts: Any
    tiles: Any
    own: Any
    reach: Any
    seen: Any
    logits: Any
    out: Any


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
    given, config = _Given(*refs), shape.config

    def run(*scoped: Any) -> None:
        warpgroup = lax.axis_index("warpgroup")
        multiplying, loading = REGISTERS[config.warpgroups]

        @pl.when(warpgroup < config.warpgroups)
        def multiply() -> None:
            plgpu.set_max_registers(multiplying, action="increase")
            _multiply(given, _Shared(*scoped), shape)

        @pl.when(warpgroup == config.warpgroups)
        def bring() -> None:
            plgpu.set_max_registers(loading, action="decrease")
            _load(given, _Shared(*scoped), shape)

    shared = _Shared(
        q=tiled_memory((config.warpgroups, MMA_ROWS, given.q.shape[-1]), given.q.dtype),
        k=tiled_memory((config.buffers, config.tile, given.k.shape[-1]), given.k.dtype),
        v=tiled_memory((config.buffers, config.tile, shape.columns), given.v.dtype),
        q_here=plgpu.Barrier(num_barriers=config.warpgroups),
        k_here=plgpu.Barrier(num_barriers=config.buffers),
        v_here=plgpu.Barrier(num_barriers=config.buffers),
        k_done=plgpu.Barrier(num_arrivals=config.warpgroups, num_barriers=config.buffers),
        v_done=plgpu.Barrier(num_arrivals=config.warpgroups, num_barriers=config.buffers),
        v_copied=plgpu.Barrier(),
    )
    pl.run_scoped(run, *shared, collective_axes="warpgroup")


def _place(given: _Given) -> tuple[Array, Array, Array]:
    """Sequence, KV head and block of a program. Blocks that read most, which are the last ones, go first."""
    block = given.counts.shape[1] - 1 - lax.axis_index("block")
    return lax.axis_index("row"), lax.axis_index("head"), block


def _first_slot(code: Array, shape: _Shape, given: _Given) -> tuple[Array, Array]:
    """Of a tile: where it begins, and where its copy in shared memory does, which ends with the cache."""
    first = (code >> 1) * shape.config.tile
    return first, jnp.minimum(first, given.k.shape[1] - shape.config.tile)


def _buffer(index: Array, code: Array, buffers: int) -> Array:
    """The buffer that a step uses. If the compiler knew that there is only one, it would keep the addresses of all
    products in registers.
    """
    return lax.rem(index, buffers) if buffers > 1 else jnp.minimum(code, 0)


def _load(given: _Given, shared: _Shared, shape: _Shape) -> None:
    """Brings tiles into shared memory."""
    (row, head, block), config = _place(given), shape.config
    columns = pl.ds(lax.axis_index("part") * shape.columns, shape.columns)

    def step(index: Array, nothing: None) -> None:
        code = given.tiles[row, block, index]
        buffer = _buffer(index, code, config.buffers)
        _, start = _first_slot(code, shape, given)
        slots, again = pl.ds(start, config.tile), index >= config.buffers
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
        for at in range(0, config.tile, MMA_ROWS):
            seen = given.seen.at[row, pl.ds(start + at, MMA_ROWS)]
            seen = load(seen, layout.reduce(1), interpreted=shape.interpreted)
            seen = lax.broadcast_in_dim(seen, (MMA_ROWS, width), (0,))
            for column in range(0, shape.columns, width):
                part = shared.v.at[buffer, pl.ds(at, MMA_ROWS), pl.ds(column, width)]
                values = load(part, layout, interpreted=shape.interpreted)
                part[...] = jnp.where(seen > 0, values, jnp.zeros_like(values))

    def drain(index: Array, nothing: None) -> None:
        """Wait for the remaining barriers: a program that has waited for a barrier once must do so each time."""
        plgpu.barrier_wait(shared.k_done.at[lax.rem(index, config.buffers)])
        plgpu.barrier_wait(shared.v_done.at[lax.rem(index, config.buffers)])

    count = given.counts[row, block]
    lax.fori_loop(0, count, step, None)
    lax.fori_loop(jnp.maximum(count - config.buffers, 0), count, drain, None)


def _multiply(given: _Given, shared: _Shared, shape: _Shape) -> None:
    """64 queries: softmax over the tiles, and the weighted values."""
    (row, head, block), config = _place(given), shape.config
    warpgroup = lax.axis_index("warpgroup")
    queries = pl.ds((block * config.warpgroups + warpgroup) * MMA_ROWS, MMA_ROWS)
    q = shared.q.at[warpgroup]

    def loaded(ref: Any) -> Array:
        return load(ref, plgpu.Layout.WGMMA.reduce(1), interpreted=shape.interpreted)

    def spread(x: Array, width: int) -> Array:
        return lax.broadcast_in_dim(x, (MMA_ROWS, width), (0,))

    plgpu.copy_gmem_to_smem(given.q.at[row, head, queries], q, shared.q_here.at[warpgroup])
    own, reach = loaded(given.own.at[row, queries]), loaded(given.reach.at[row, queries])
    highest = loaded(given.logits.at[head, queries])
    plgpu.barrier_wait(shared.q_here.at[warpgroup])

    def masked(scores: Array, code: Array) -> Array:
        first, start = _first_slot(code, shape, given)
        slots = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        slots = laid_out(slots, plgpu.Layout.WGMMA, interpreted=shape.interpreted) + start
        seen = in_span(spread(own, config.tile), spread(reach, config.tile), slots, shape.capacity)
        # The last tile may begin in the one before, or the cache end before it does.
        seen = seen & (slots >= first) & (slots < shape.capacity)
        return jnp.where(seen, scores, -jnp.inf)

    def step(index: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, sums = state
        code = given.tiles[row, block, index]
        buffer = _buffer(index, code, config.buffers)
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
        weights = jnp.exp2(scores - spread(base, config.tile))
        fade = jnp.exp2(highest - base)
        total = total * fade + jnp.sum(weights, axis=1)
        sums = sums * spread(fade, shape.columns)
        plgpu.barrier_wait(shared.v_here.at[buffer])
        weights = weights.astype(given.v.dtype)
        sums = add_product(sums, weights, shared.v.at[buffer], interpreted=shape.interpreted)
        plgpu.barrier_arrive(shared.v_done.at[buffer])
        return now, total, sums

    total = jnp.where(highest == -jnp.inf, 0.0, 1.0)
    sums = jnp.zeros((MMA_ROWS, shape.columns), jnp.float32)
    sums = laid_out(sums, plgpu.Layout.WGMMA, interpreted=shape.interpreted)
    _, total, sums = lax.fori_loop(0, given.counts[row, block], step, (highest, total, sums))
    columns = pl.ds(lax.axis_index("part") * shape.columns, shape.columns)
    given.out[row, head, queries, columns] = sums / spread(jnp.where(total == 0.0, 1.0, total), shape.columns)


def _sixteen_bits(store: KVStore, width: int, slots: int) -> Array:
    """[B, slots, G, width]: entries as they are kept, padded with zeros, in a type of tensor cores."""
    kind = store.kind
    floats = kind.floats(store.parts) if isinstance(kind, FloatFormat) else store.rotated().astype(jnp.bfloat16)
    missing = [(0, 0), (0, slots - floats.shape[1]), (0, 0), (0, width - floats.shape[3])]
    return jnp.pad(floats, missing)


@partial(jax.jit, static_argnames=("config", "interpret"))
def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    (batch, tokens, heads, width), (_, capacity, kv_heads, _) = call.q.shape, call.k.shape
    dims, v, window = call.sizes("T"), call.v, call.window
    config = config_for(TUNABLE, dims, config)
    key_width, value_width, columns = _widths(dims)
    if _bytes(config, key_width, columns) > SHARED_MEMORY:
        raise ValueError(
            f"cache_attention: config is {config}; accepted: what fits into {SHARED_MEMORY // 1024} KiB: "
            f"{', '.join(map(str, candidates(dims)))}"
        )
    blocks = Blocks(tokens, heads, kv_heads, config.warpgroups * MMA_ROWS)
    slots = max(-(-capacity // SLOTS) * SLOTS, config.tile)
    keys, values = _sixteen_bits(call.k, key_width, slots), _sixteen_bits(v, value_width, slots)
    queries = blocks.split(call.rotated_queries().astype(keys.dtype))
    queries = jnp.pad(queries, [(0, 0)] * 3 + [(0, key_width - queries.shape[-1])])
    at = blocks.positions(call.positions)
    own, reach = spans(at, capacity, window)
    counts, tiles = blocks.tiles(at, config.tile, capacity, window)
    seen = jnp.any(as_mask(call.positions, capacity, window), axis=1).astype(jnp.int32)
    logits = blocks.split(jnp.broadcast_to(call.logits() * LOG2_E, (1, tokens, heads)))[0]
    seen = jnp.pad(seen, ((0, 0), (0, slots - capacity)))
    kernel = pl.kernel(
        partial(_body, shape=_Shape(config, columns, capacity, call.scale, call.soft_cap, interpret)),
        out_type=jax.ShapeDtypeStruct((*queries.shape[:3], value_width), jnp.float32),
        mesh=plgpu.Mesh(
            grid=(batch, kv_heads, value_width // columns, blocks.count),
            grid_names=("row", "head", "part", "block"),
            num_threads=config.warpgroups + 1,
            thread_name="warpgroup",
        ),
        name="cache_attention_prefill",
        **kernel_options(interpreted=interpret),
    )
    out = kernel(queries, keys, values, counts, tiles, own, reach, seen, logits)
    return v.kind.unrotate(blocks.merge(out)[..., : v.kind.stored_width(width)], width)


SHAPES = model_shapes(T=512, S=8192)
TUNABLE = Tunable("cache_attention", "pallas_gpu_prefill", Config, heuristic, candidates, SHAPES, full_cache, attend)
