"""Attention of many rows for TPU: the kernel of `pallas_tpu` over blocks of rows (flash attention).

A block reads the tiles that one of its rows sees and no scores leave VMEM. Rows of a block are as many as fit: over
floats about 256 queries of a KV head; over quantized caches fewer, since VMEM has a copy of each query for each group
of values with a scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.block_sizes import BlockSizes, at_least_one, multiple_of
from pallas_kernels.cache_attention import pallas_tpu
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.lanes import lanes_of
from pallas_kernels.kv_formats import format_named
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

QUERY_BYTES = 2 << 20
"""Bounds the queries of a block, of which VMEM has two."""

MOST_STEPS = 1 << 17
"""Of a call of the kernel, which has a number for each of them in scalar memory; that has room for twice as many."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """Block sizes.

    Attributes:
        rows: of a block.
        tile: slots of a step; see `pallas_tpu.Config`.
    """

    rows: int = at_least_one()
    tile: int = multiple_of(pallas_tpu.LANES)


def candidates(dims: Dims) -> list[Config]:
    """Blocks of 8 rows or more that fit, and of one row, with the tiles that fit beside them."""
    keys = lanes_of(format_named(dims["k_type"]), dims["N"])
    row_bytes = dims["H"] * keys.runs * keys.chunk_lanes * 4
    most = min(QUERY_BYTES // row_bytes, pallas_tpu.MOST_QUERIES * dims["G"] // dims["H"])
    return [
        Config(rows, blocks.tile)
        for rows in (1, 8, 16, 32, 64)
        if rows == 1 or rows <= most
        for blocks in pallas_tpu.candidates({**dims, "T": rows})
    ]


def heuristic(dims: Dims) -> Config:
    """Most rows first: each block reads the cache anew. A step costs a fixed time beside its transfers."""
    return max(candidates(dims), key=lambda config: (config.rows, config.tile))


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if (queries := dims["H"] // dims["G"]) > pallas_tpu.MOST_QUERIES:
        return f"H / G = {queries}: made for at most {pallas_tpu.MOST_QUERIES} queries of a KV head"
    return pallas_tpu.unfit({**dims, "T": 1})


def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    batch, n_rows, heads, width = call.q.shape
    config = config_for(TUNABLE, call.sizes("T"), config)
    rows = min(config.rows, n_rows)
    blocks, steps = -(-n_rows // rows), batch * -(-call.k.shape[1] // config.tile)
    calls = -(-blocks // max(1, MOST_STEPS // steps))
    blocks = -(-blocks // calls)  # of a sequence in a call
    missing = calls * blocks * rows - n_rows

    def by_call(x: Array) -> Array:  # [B, T, ...] -> [calls, B * blocks, rows, ...]
        x = jnp.moveaxis(x.reshape(batch, calls, blocks, rows, *x.shape[2:]), 1, 0)
        return x.reshape(calls, batch * blocks, rows, *x.shape[4:])

    def one_call(given: tuple[Array, Array]) -> Array:
        q, positions = given
        blocks = replace(call, q=q, positions=positions)
        return pallas_tpu.attend(blocks, config=pallas_tpu.Config(config.tile), interpret=interpret)

    queries = by_call(jnp.pad(call.q, ((0, 0), (0, missing), (0, 0), (0, 0))))
    rows_at = by_call(jnp.pad(call.positions, ((0, 0), (0, missing)), constant_values=-1))
    out = lax.map(one_call, (queries, rows_at)) if calls > 1 else one_call((queries[0], rows_at[0]))[None]
    out = jnp.moveaxis(out.reshape(calls, batch, blocks * rows, heads, width), 0, 1)
    return out.reshape(batch, -1, heads, width)[:, :n_rows]


SHAPES = model_shapes(T=512, S=8192)
TUNABLE = Tunable("cache_attention", "pallas_tpu_prefill", Config, heuristic, candidates, SHAPES, full_cache, attend)
