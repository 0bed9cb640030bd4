"""Checks of the arguments of attention, and what implementations are chosen by."""

import math

from jax import Array

from pallas_kernels.dispatch import Dims
from pallas_kernels.kv_formats import KVStore, format_named

MOST_ROWS = 16
"""Of a sequence in one call, that kernels of this operation are made for; `prefill_attention` has others."""


def check(
    name: str, q: Array, k: KVStore, v: KVStore, positions: Array, soft_cap: float | None, sinks: Array | None
) -> None:
    """ValueError for arguments that do not fit together."""
    batch, rows, heads, width = q.shape
    if k.shape != v.shape or len(k.shape) != 4 or (k.shape[0], k.shape[3]) != (batch, width):
        raise ValueError(f"{name}: q is [B, T, H, N], k and v are [B, S, G, N]; got q {q.shape}, {k.shape}, {v.shape}")
    if heads % k.shape[2]:
        raise ValueError(f"{name}: {heads} query heads cannot share {k.shape[2]} KV heads evenly")
    if positions.shape != (batch, rows):
        raise ValueError(f"{name}: positions have shape {positions.shape}; [B, T] is {(batch, rows)}")
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(f"{name}: soft_cap is {soft_cap}; accepted: a number above 0, or None")
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"{name}: sinks have shape {sinks.shape}; [H] is {(heads,)}")


def dims_of(q: Array, k: KVStore, v: KVStore, soft_cap: float | None, sinks: Array | None) -> Dims:
    """What implementations are chosen by."""
    (batch, rows, heads, width), (_, capacity, kv_heads, _) = q.shape, k.shape
    return {
        "B": batch, "T": rows, "H": heads, "G": kv_heads, "N": width, "S": capacity,
        "k_type": k.format, "v_type": v.format, "soft_cap": soft_cap, "sinks": sinks is not None,
    }  # fmt: skip


def complete_dims(operation: str, dims: Dims) -> Dims:
    """What `dims_of` gives for a call of such sizes. ValueError for what is missing or not known."""
    needed = ("T", "H", "G", "N", "S", "k_type", "v_type")
    optional = {"B": 1, "soft_cap": None, "sinks": False}
    missing, unknown = [n for n in needed if n not in dims], [n for n in dims if n not in needed and n not in optional]
    if missing or unknown:
        raise ValueError(
            f"{operation}: explain takes {', '.join(needed)}, and {', '.join(optional)} where they matter; "
            f"missing: {', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}"
        )
    for name in ("k_type", "v_type"):
        format_named(dims[name])
    return {**{n: dims[n] for n in needed}, **{n: dims.get(n, default) for n, default in optional.items()}}
