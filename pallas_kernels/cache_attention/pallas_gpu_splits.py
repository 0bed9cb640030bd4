"""Attention of few rows for NVIDIA's Hopper GPUs, on tensor cores: flash-decoding with pallas_gpu_tensor_cores.py.

All rows of a sequence are one block of queries or two, and many programs share its tiles, so that every multiprocessor
reads a part of the cache.

Source: Dao et al., "Flash-Decoding for long-context inference" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, at_least_one, one_of
from pallas_kernels.cache_attention.arguments import too_many_rows
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.pallas_gpu_tensor_cores import Steps, attention, misfit, no_16_bits
from pallas_kernels.cache_attention.temporary import OF_ROUNDS, too_many_sums, too_much_to_decode
from pallas_kernels.mosaic_gpu import MMA_ROWS, SHARED_MEMORY
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

MULTIPROCESSORS = 132
"""Those of an H100. A program takes the shared memory of one."""

SPLIT_SLOTS = 256
"""The fewest slots of a split: with fewer, combining the splits costs more than it brings."""

MOST_WARPGROUPS = 2
"""Of 64 queries each; more queries are several blocks, which all read the cache."""

MOST_BYTES = 2**28
"""The most memory that what the splits have may take until it is combined. There is as much of it for a cache that is
nearly empty as for a full one.
"""


@dataclass(frozen=True)
class Config(BlockSizes):
    """Block sizes. They change how sums are rounded.

    Attributes:
        tile: slots of a step: 64 or 128.
        splits: of the tiles of a cache.
    """

    tile: int = one_of(64, 128)
    splits: int = at_least_one()


def _steps(tile: int, warpgroups: int, dims: Dims) -> Steps | None:
    """With as many buffers as there is room for, up to four; None if there is room for none."""
    fitting = (Steps(warpgroups, tile, buffers) for buffers in (4, 3, 2, 1))
    return next((steps for steps in fitting if not misfit(steps, dims)), None)


def _tiles(dims: Dims) -> list[int]:
    """Those that fit, whatever the number of rows: a row's sums must not depend on it."""
    return [tile for tile in (64, 128) if _steps(tile, MOST_WARPGROUPS, dims)]


def heuristic(dims: Dims) -> Config:
    """As many splits as there are multiprocessors, if there is one sequence; the larger tile that fits.

    The numbers of sequences and rows have no say.
    """
    return Config(_tiles(dims)[-1], max(1, min(MULTIPROCESSORS // dims["G"], dims["S"] // SPLIT_SLOTS)))


def candidates(dims: Dims) -> list[Config]:
    """Configs near the one that the heuristic chooses."""
    splits = heuristic(dims).splits
    return [Config(tile, n) for tile in _tiles(dims) for n in sorted({max(1, splits // 2), splits, 2 * splits})]


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if (reason := too_many_rows(dims) or no_16_bits(dims) or too_much_to_decode(dims, OF_ROUNDS)) is not None:
        return reason
    if not _tiles(dims):
        return f"N={dims['N']}: queries, keys and values do not fit into {SHARED_MEMORY // 1024} KiB of shared memory"
    return too_many_sums(dims, heuristic(dims).splits, MOST_BYTES, multiple=MMA_ROWS)


@partial(jax.jit, static_argnames=("config", "interpret"))
def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    dims = call.sizes()
    config = config_for(TUNABLE, dims, config)
    queries = call.q.shape[1] * call.per_kv_head
    steps = _steps(config.tile, min(-(-queries // MMA_ROWS), MOST_WARPGROUPS), dims)
    if steps is None:
        raise ValueError(f"cache_attention: config is {config}; accepted: {', '.join(map(str, candidates(dims)))}")
    return attention("cache_attention_splits", call, steps, config.splits, interpret=interpret)


SHAPES = model_shapes(S=32768)
TUNABLE = Tunable("cache_attention", "pallas_gpu_splits", Config, heuristic, candidates, SHAPES, full_cache, attend)
