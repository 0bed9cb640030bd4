"""Attention of many rows for NVIDIA GPUs since Ampere, in Triton, over caches of every format.

It is the kernel of triton_splits.py with one split and more rows in a program: queries of neighbouring tokens that
share a KV head. A tile of slots that none of them sees is not read. Factors are rounded to bfloat16, and split into two
numbers of bfloat16 where the cache holds float16 or float32; scores, softmax and sums are float32. Quantized caches are
decoded by XLA before the kernel, whole and once for all blocks of rows: a copy in bfloat16, which is there while a
layer is computed.
"""

from __future__ import annotations

from jax import Array

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.temporary import OF_PROMPTS, too_much_to_decode
from pallas_kernels.cache_attention.triton_splits import Config, over_splits, too_wide
from pallas_kernels.cache_attention.xla_decoded import decoded
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import missing
from pallas_kernels.tuning import Tunable, config_for

FINER = ("f16", "f32")
"""Caches whose numbers have more bits than bfloat16."""


def heuristic(dims: Dims) -> Config:
    """The most rows whose sums fit into registers: keys and values are read anew for each block of them."""
    fine = any(dims[name] in FINER for name in ("k_type", "v_type"))
    if dims["N"] > 256:
        return Config(16 if fine else 32, 16, 1, 8)
    rows = 32 if fine else 64
    return Config(rows, 32, 1, 8 if dims["N"] > 128 else 4)


def candidates(dims: Dims) -> list[Config]:
    """All whose sums take at most 64 registers of a thread."""
    return [
        Config(rows, slots, 1, warps)
        for rows in (16, 32, 64, 128)
        for slots in (16, 32, 64)
        for warps in (4, 8)
        if rows * dims["N"] <= 64 * 32 * warps
    ]


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why these sizes cannot be served, or None."""
    return too_wide(dims) or too_much_to_decode(dims, OF_PROMPTS) or missing(interpreted=interpreted)


def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    stores = decoded(call.k), decoded(call.v)
    of_scores, of_sums = (2 if store.format in FINER else 1 for store in stores)
    config = config_for(TUNABLE, call.sizes("T"), config)
    return over_splits(call, stores, (of_scores, of_sums), config, interpret=interpret)


SHAPES = model_shapes(T=512, S=8192)
TUNABLE = Tunable("cache_attention", "triton_prefill", Config, heuristic, candidates, SHAPES, full_cache, attend)
