"""Attention of many rows for NVIDIA's Hopper GPUs: the blocks of pallas_gpu_tensor_cores.py, each with a program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, one_of
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.pallas_gpu_tensor_cores import REGISTERS, Steps, attention, misfit, no_16_bits
from pallas_kernels.cache_attention.temporary import OF_PROMPTS, too_much_to_decode
from pallas_kernels.mosaic_gpu import SHARED_MEMORY
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for


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

    @property
    def steps(self) -> Steps:
        """How a program goes through the cache."""
        return Steps(self.warpgroups, self.tile, self.buffers)


def candidates(dims: Dims) -> list[Config]:
    """Those that fit into shared memory, and whose scores fit into registers beside the sums."""
    return [
        config
        for warpgroups in REGISTERS
        for tile in (64, 128)
        for buffers in (1, 2, 3, 4)
        if not misfit((config := Config(warpgroups, tile, buffers)).steps, dims)
    ]


def heuristic(dims: Dims) -> Config:
    """Two tiles in memory before two blocks of queries before more slots: loads have to go on during products."""
    return max(
        (config for config in candidates(dims) if config.warpgroups < 3),
        key=lambda config: (min(config.buffers, 2), config.warpgroups, config.tile, config.buffers),
    )


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if (reason := no_16_bits(dims) or too_much_to_decode(dims, OF_PROMPTS)) is not None:
        return reason
    if not candidates(dims):
        return f"N={dims['N']}: queries, keys and values do not fit into {SHARED_MEMORY // 1024} KiB of shared memory"
    return None


@partial(jax.jit, static_argnames=("config", "interpret"))
def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    dims = call.sizes("T")
    config = config_for(TUNABLE, dims, config)
    if misfit(config.steps, dims):
        raise ValueError(
            f"cache_attention: config is {config}; accepted: what fits into {SHARED_MEMORY // 1024} KiB: "
            f"{', '.join(map(str, candidates(dims)))}"
        )
    return attention("cache_attention_prefill", call, config.steps, 1, interpret=interpret)


SHAPES = model_shapes(T=512, S=8192)
TUNABLE = Tunable("cache_attention", "pallas_gpu_prefill", Config, heuristic, candidates, SHAPES, full_cache, attend)
