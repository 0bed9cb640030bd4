"""Attention of few rows for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU), over caches of every format.

A warpgroup has one KV head, some of its queries, and every n-th tile of slots. Its four warps take a slot of four each:
the 32 lanes of a warp hold one key and one value decoded in registers, and a warp has a softmax of its own, so that no
sum crosses warps. What the warps of all splits have is combined by XLA at the end (flash-decoding). Tiles that no row
of the sequence sees are not read.

All arithmetic is float32 on the CUDA cores: keys and values are read in their format and never written back. A vector
is read once for each block of queries, from the second on out of the L2 cache.

Sources: Milakov and Gimelshein, arXiv 1805.02867; Dao et al., "Flash-Decoding for long-context inference" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.block_sizes import BlockSizes, at_least_one, multiple_of
from pallas_kernels.cache_attention.arguments import too_many_rows
from pallas_kernels.cache_attention.blocks import tiles_of_splits
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.heads import by_kv_head, by_token
from pallas_kernels.cache_attention.lanes import lanes_of
from pallas_kernels.cache_attention.pallas_gpu_registers import LANES, WARPS, Registers, Tile
from pallas_kernels.cache_attention.softmax import capped, merged
from pallas_kernels.cache_attention.temporary import too_many_sums
from pallas_kernels.cache_attention.visibility import in_span, spans, visible_tiles
from pallas_kernels.kv_formats import KVStore, format_named
from pallas_kernels.kv_formats.turbo import GROUP
from pallas_kernels.mosaic_gpu import interpreter, plgpu
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for


@dataclass(frozen=True)
class Config(BlockSizes):
    """Block sizes.

    Attributes:
        queries: of a warpgroup at most.
        slots: of a tile; a multiple of 4. It changes how sums are rounded, and so does the next.
        splits: of the tiles of a cache.
    """

    queries: int = at_least_one()
    slots: int = multiple_of(WARPS)
    splits: int = at_least_one()


SUMS_PER_LANE = 64
"""Registers for weighted values; queries take as many again."""

SPLIT_SLOTS = 256
"""The fewest slots of a split: with fewer, combining the splits costs more than it brings."""

MOST_BYTES = 2**31
"""The most memory that the sums of all splits may take until they are combined."""

WARPGROUPS = 132
"""How many warpgroups a call should have: one on each multiprocessor of an H100, if a sequence has one block of
queries. There is room for two.
"""


def heuristic(dims: Dims) -> Config:
    """As many splits as give every multiprocessor work, by the model and the size of the cache alone.

    The numbers of sequences and rows have no say: a row's sums must not depend on how many there are.
    """
    queries = max(1, min(8, SUMS_PER_LANE * LANES // dims["N"]))
    return Config(queries, 16, max(1, min(WARPGROUPS // dims["G"], dims["S"] // SPLIT_SLOTS)))


def candidates(dims: Dims) -> list[Config]:
    """Configs near the one that the heuristic chooses."""
    base = heuristic(dims)
    queries = sorted({max(1, base.queries // 2), base.queries})
    splits = sorted({max(1, base.splits // 2), base.splits, 2 * base.splits})
    return [Config(q, slots, n) for q in queries for slots in (8, 16, 32) for n in splits]


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if (reason := too_many_rows(dims)) is not None:
        return reason
    if dims["S"] < WARPS:
        return f"S={dims['S']}: made for at least {WARPS} slots"
    splits = []
    for name in ("k_type", "v_type"):
        tile = Tile.of(lanes_of(format_named(dims[name]), dims["N"]))
        if tile.split is None:
            return f"N={dims['N']} in {dims[name]}: {tile.shape} entries cannot be dealt to {LANES} lanes evenly"
        splits.append(tile.split[0])
    if splits[0] != splits[1]:
        return f"N={dims['N']}: types of keys and values may only differ where it is a multiple of {GROUP}"
    return too_many_sums(dims, heuristic(dims).splits * WARPS, MOST_BYTES)


def _body(
    warp_ref, count_ref, tile_ref, own_ref, reach_ref, q_ref, k_ref, v_ref, highest_ref, total_ref, sums_ref,
    *, keys: Registers, values: Registers, config: Config, capacity: int, soft_cap: float | None,
):  # fmt: skip
    row, head, block, split = (lax.axis_index(name) for name in ("row", "head", "block", "split"))
    warp = keys.load(warp_ref, keys.values)
    planes_k, planes_v = len(keys.tile.order), len(values.tile.order)
    queries = [block * config.queries + i for i in range(config.queries)]
    q = [
        [keys.spread(keys.load(q_ref.at[row, head, r, plane], (0,)), keys.values) for plane in range(planes_k)]
        for r in queries
    ]

    def four_slots(first: Array, state: list[tuple[Array, Array, list[Array]]]) -> list[Any]:
        # The last four may begin among those before, which then do not count again.
        start = jnp.minimum(first, capacity - WARPS)
        slots = warp + start
        at = row, pl.ds(start, WARPS), head
        k, v = keys.decode(k_ref, at), values.decode(v_ref, at)
        new = []
        for i, r in enumerate(queries):
            highest, total, sums = state[i]
            products = [a * b for a, b in zip(q[i], k, strict=True)]
            score = capped(keys.sum(sum(products[1:], products[0])), soft_cap)
            seen = in_span(own_ref[row, r], reach_ref[row, r], slots, capacity) & (slots >= first)
            score = jnp.where(seen, score, -jnp.inf)
            now = jnp.maximum(highest, score)
            base = jnp.where(now == -jnp.inf, 0.0, now)
            weight, fade = jnp.exp(score - base), jnp.exp(highest - base)
            total = total * fade + weight
            wide_weight, wide_fade = (
                values.spread(values.per_warp(weight), (0,)),
                values.spread(values.per_warp(fade), (0,)),
            )
            # What is not seen may be anything, and zero times anything is not always zero.
            sums = [
                s * wide_fade + jnp.where(wide_weight > 0, wide_weight * x, 0.0) for s, x in zip(sums, v, strict=True)
            ]
            new.append((now, total, sums))
        return new

    def tile(index: Array, state: Any) -> Any:
        first = tile_ref[row, split, index] * config.slots
        return lax.fori_loop(0, config.slots // WARPS, lambda i, state: four_slots(first + i * WARPS, state), state)

    def start() -> tuple[Array, Array, list[Array]]:
        zero = jnp.zeros((WARPS, *values.tile.shape), jnp.float32)
        zero = zero if values.interpreted else plgpu.layout_cast(zero, values.tile.layout)
        lowest = keys.per_warp(jnp.full((WARPS,), -jnp.inf, jnp.float32))
        return lowest, keys.per_warp(jnp.zeros((WARPS,), jnp.float32)), [zero] * planes_v

    state = lax.fori_loop(0, count_ref[row, split], tile, [start() for _ in queries])
    for r, (highest, total, sums) in zip(queries, state, strict=True):
        highest_ref[row, head, r, split] = highest
        total_ref[row, head, r, split] = total
        for plane in range(planes_v):
            sums_ref[row, head, r, split, plane] = sums[plane]


@partial(jax.jit, static_argnames=("config", "interpret"))
def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    (batch, rows, heads, width), (_, capacity, kv_heads, _), v = call.q.shape, call.k.shape, call.v
    config = config_for(TUNABLE, call.sizes(), config)
    keys, values = (Registers(Tile.of(lanes_of(x.kind, width)), interpret) for x in (call.k, v))
    count = rows * call.per_kv_head
    blocks = pl.cdiv(count, config.queries)
    config = replace(config, queries=pl.cdiv(count, blocks))  # alike, so that few are computed for nothing
    padded = blocks * config.queries

    def padded_to(x: Array, axis: int) -> Array:
        return jnp.pad(x, [(0, padded - count if a == axis else 0) for a in range(x.ndim)])

    queries = padded_to(by_kv_head(call.rotated_queries() * call.scale, kv_heads), 2)
    queries = jnp.take(queries, keys.tile.order, axis=-1)
    own, reach = spans(call.positions, capacity, call.window)
    own, reach = (padded_to(jnp.repeat(x, call.per_kv_head, axis=1), 1) for x in (own, reach))
    seen = visible_tiles(call.positions, config.slots, capacity, call.window)
    tile_counts, tiles = tiles_of_splits(seen, config.splits)
    lead = batch, kv_heads, padded, config.splits
    planes = len(values.tile.order)
    kernel = pl.kernel(
        partial(_body, keys=keys, values=values, config=config, capacity=capacity, soft_cap=call.soft_cap),
        out_type=(
            jax.ShapeDtypeStruct((*lead, WARPS), jnp.float32),
            jax.ShapeDtypeStruct((*lead, WARPS), jnp.float32),
            jax.ShapeDtypeStruct((*lead, planes, WARPS, *values.tile.shape), jnp.float32),
        ),
        mesh=plgpu.Mesh(grid=(batch, kv_heads, config.splits, blocks), grid_names=("row", "head", "split", "block")),
        # Explicit because the default differs between releases of jax.
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=interpreter() if interpret else False,
        name="cache_attention",
    )
    warps = jnp.arange(WARPS, dtype=jnp.int32)
    parts = (_viewed(store, registers.tile) for store, registers in ((call.k, keys), (v, values)))
    highest, total, sums = kernel(warps, tile_counts, tiles, own, reach, queries, *parts)
    highest, total = (x.reshape(*lead[:3], -1) for x in (highest, total))
    sums = jnp.moveaxis(sums, 4, 5).reshape(*highest.shape, -1)
    logits = padded_to(by_kv_head(jnp.broadcast_to(call.logits(), (batch, rows, heads)), kv_heads), 2)
    out = merged(highest, total, sums, logits)[:, :, :count]
    place = np.zeros(v.kind.stored_width(width), np.int32)
    place[values.tile.order.reshape(-1)] = np.arange(values.tile.order.size)
    return v.kind.unrotate(by_token(jnp.take(out, place, axis=-1), rows), width)


def _viewed(store: KVStore, tile: Tile) -> dict[str, Array]:
    """The parts with the axes of a tile; nothing moves."""
    codes = store.parts["codes"]
    shape = (*tile.shape[:-2], -1, 8) if tile.three_bits else tile.shape
    parts = {**store.parts, "codes": codes.reshape(*codes.shape[:3], *shape)}
    if "scales" in parts:
        parts["scales"] = parts["scales"].reshape(*codes.shape[:3], *tile.shape[: tile.scale_axes])
    return parts


SHAPES = model_shapes(S=32768)
TUNABLE = Tunable("cache_attention", "pallas_gpu", Config, heuristic, candidates, SHAPES, full_cache, attend)
