"""Attention of few rows for NVIDIA GPUs since Ampere, in Triton, over caches of every format.

A program has some rows that share a KV head, and every n-th tile of slots. It decodes keys and values in registers and
multiplies on tensor cores: both factors are split into two numbers of bfloat16, a high and a low part, of which only
the product of the low parts is left out. Softmax and sums are float32. What the splits have is combined by XLA at the
end (flash-decoding). Slots that no row of the program sees are not read.

Sources: Milakov and Gimelshein, arXiv 1805.02867; Dao et al., "Flash-Decoding for long-context inference" (2023);
splitting factors: Henry, Tang and Heinecke, arXiv 1904.06376.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, at_least_one, one_of
from pallas_kernels.cache_attention.arguments import too_many_rows
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.heads import by_kv_head, by_token
from pallas_kernels.cache_attention.softmax import merged
from pallas_kernels.cache_attention.temporary import too_many_sums
from pallas_kernels.cache_attention.visibility import spans
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import bfloat16_parts, launch, missing, power_of_two
from pallas_kernels.tuning import Tunable, config_for

WIDEST = 512
DEPTH = 64
"""Entries of keys that are multiplied at a time, or those that share a scale."""
SPLIT_SLOTS = 256
"""The fewest slots of a split: with fewer, combining the splits costs more than it brings."""
MOST_BYTES = 2**31
"""The most memory that the sums of all splits may take until they are combined."""
PROGRAMS = 216
"""How many programs a call should have: two on each multiprocessor of an A100."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """Block sizes.

    Attributes:
        rows: queries of a program: 16, 32, 64 or 128.
        slots: of a tile: 16, 32 or 64.
        splits: of the tiles of a cache.
        warps: 4 or 8.
    """

    rows: int = one_of(16, 32, 64, 128)
    slots: int = one_of(16, 32, 64)
    splits: int = at_least_one()
    warps: int = one_of(4, 8)


def heuristic(dims: Dims) -> Config:
    """A config that fits into registers. It depends on the model and the size of the cache alone.

    The number of rows has no say: a row's sums must not depend on how many there are.
    """
    splits = max(1, min(PROGRAMS // dims["G"], dims["S"] // SPLIT_SLOTS))
    return Config(16, 16 if dims["N"] > 256 else 32, splits, 8 if dims["N"] > 128 else 4)


def candidates(dims: Dims) -> list[Config]:
    """Configs near the one that the heuristic chooses."""
    base = heuristic(dims)
    splits = sorted({max(1, base.splits // 2), base.splits, 2 * base.splits})
    return [
        Config(rows, slots, n, warps) for rows in (16, 32) for slots in (16, 32) for n in splits for warps in (4, 8)
    ]


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why these sizes cannot be served, or None."""
    too_large = too_wide(dims) or too_many_sums(dims, heuristic(dims).splits, MOST_BYTES)
    return too_many_rows(dims) or too_large or missing(interpreted=interpreted)


def too_wide(dims: Dims) -> str | None:
    """Why heads of this size cannot be served, or None."""
    return f"N={dims['N']} is more than {WIDEST}" if dims["N"] > WIDEST else None


def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing."""
    config = config_for(TUNABLE, call.sizes(), config)
    return over_splits(call, (call.k, call.v), (2, 2), config, interpret=interpret)


def over_splits(
    call: Call, stores: tuple[KVStore, KVStore], parts: tuple[int, int], config: Config, *, interpret: bool
) -> Array:
    """The same for keys and values as they are in these stores, rotated.

    Args:
        parts: numbers of bfloat16 that the factors of scores, and of sums of values, are split into: 2, or 1, which
            rounds them.
    """
    from pallas_kernels.cache_attention import triton_kernels

    (batch, rows, heads, width), (_, capacity, kv_heads, _) = call.q.shape, call.k.shape
    count = rows * call.per_kv_head
    (k, v), (of_scores, of_sums) = stores, parts
    keys, values = _meaning(k, "K", of_scores), _meaning(v, "V", of_sums)

    queries = by_kv_head(call.rotated_queries(), kv_heads)
    queries = jnp.pad(queries, [(0, 0)] * 3 + [(0, keys["K_PADDED"] - queries.shape[-1])])
    own, reach = spans(call.positions, capacity, call.window)
    lead = batch, kv_heads, count, config.splits
    part = jax.ShapeDtypeStruct(lead, jnp.float32)
    highest, total, sums = launch(
        triton_kernels.partial_attention,
        (bfloat16_parts(queries, of_scores), own, reach, *_arrays(k), *_arrays(v)),
        (),
        (part, part, jax.ShapeDtypeStruct((*lead, values["V_STORED"]), jnp.float32)),
        grid=(batch * kv_heads, -(-count // config.rows), config.splits),
        warps=config.warps,
        interpret=interpret,
        T=rows,
        HEADS=call.per_kv_head,
        G=kv_heads,
        S=capacity,
        WINDOW=call.window is not None,
        SCALE=float(call.scale),
        SOFT_CAP=float(call.soft_cap or 0),
        ROWS=config.rows,
        SLOTS=config.slots,
        DEPTH=min(keys["K_PADDED"], max(DEPTH, keys["K_GROUP"] if keys["K_SCALES"] else 0)),
        SPLITS=config.splits,
        WIDEN=interpret,
        **keys,
        **values,
    )
    logits = by_kv_head(jnp.broadcast_to(call.logits(), (batch, rows, heads)), kv_heads)
    out = merged(highest, total, sums, logits)
    return call.v.kind.unrotate(by_token(out, rows), width)


def _meaning(store: KVStore, letter: str, parts: int) -> dict[str, Any]:
    """Format and sizes of vectors as constants of the kernel."""
    stored, scales = store.kind.stored_width(store.width), store.parts.get("scales")
    n_scales = 0 if scales is None else scales.shape[-1]
    constants = {
        "FORMAT": store.format,
        "BYTES": store.parts["codes"].shape[-1],
        "SCALES": n_scales,
        "GROUP": stored // max(1, n_scales),
        "STORED": stored,
        "PADDED": max(16, power_of_two(stored)),
        "EXACT": store.format == "bf16",
        "PARTS": parts,
    }
    return {f"{letter}_{name}": value for name, value in constants.items()}


def _arrays(store: KVStore) -> tuple[Array, Array, Array]:
    """Codes, scales, and what the codes of a rotated format stand for."""
    codes = store.parts["codes"]
    kind, n_codes = store.kind, 1 << store.kind.bits if store.kind.bits < 8 else 1
    return codes, store.parts.get("scales", codes), kind.unscaled(jnp.arange(n_codes), kind.group(store.width))


SHAPES = model_shapes(S=32768)
TUNABLE = Tunable("cache_attention", "triton", Config, heuristic, candidates, SHAPES, full_cache, attend)
