"""Checks of the arguments of attention, and what implementations are chosen by."""

import math
from numbers import Real

from pallas_kernels.arguments import INTEGERS, expect_array, expect_count, expect_number
from pallas_kernels.cache_attention.call import MODEL, Call
from pallas_kernels.kv_formats import KVStore, format_named
from pallas_kernels.table import Dims

FEW_ROWS = 16
"""Rows of a sequence in one call, at most, for the implementations that are made for rounds of decoding."""


def too_many_rows(dims: Dims) -> str | None:
    """Why an implementation for few rows cannot serve a call, or None."""
    return f"T={dims['T']}: made for at most {FEW_ROWS} rows" if dims["T"] > FEW_ROWS else None


def check(name: str, call: Call) -> None:
    """ValueError for arguments that do not fit together."""
    expect_array(name, "q", call.q, "B T H N")
    (batch, rows, heads, width), k, v = call.q.shape, call.k, call.v
    for store_name, store in {"k": k, "v": v}.items():
        if not isinstance(store, KVStore):
            raise ValueError(
                f"{name}: {store_name} is of type {type(store).__name__}; accepted: a KVStore [B, S, G, N]"
            )
    if k.shape != v.shape or len(k.shape) != 4 or (k.shape[0], k.shape[3]) != (batch, width) or 0 in k.shape:
        raise ValueError(
            f"{name}: q is [B, T, H, N], k and v are [B, S, G, N], and no axis is empty; "
            f"got q {call.q.shape}, k {k.shape}, v {v.shape}"
        )
    if heads % k.shape[2]:
        raise ValueError(f"{name}: {heads} query heads cannot share {k.shape[2]} KV heads evenly")
    expect_array(name, "positions", call.positions, "B T", INTEGERS)
    if call.positions.shape != (batch, rows):
        raise ValueError(f"{name}: positions have shape {call.positions.shape}; [B, T] is {(batch, rows)}")
    expect_number(name, "scale", call.scale)
    if call.window is not None:
        expect_count(name, "window", call.window)
    if call.soft_cap is not None:
        expect_soft_cap(name, call.soft_cap)
    if call.sinks is not None:
        expect_array(name, "sinks", call.sinks, "H")
        if call.sinks.shape != (heads,):
            raise ValueError(f"{name}: sinks have shape {call.sinks.shape}; [H] is {(heads,)}")


def expect_soft_cap(name: str, soft_cap: float) -> None:
    """ValueError unless it is a number above 0."""
    if not isinstance(soft_cap, Real) or not 0 < soft_cap < math.inf:
        raise ValueError(f"{name}: soft_cap is {soft_cap!r}; accepted: a number above 0, or None")


def complete_dims(operation: str, dims: Dims) -> Dims:
    """The `dims` of a call of such sizes. ValueError for what is missing or not known."""
    needed = ("T", *MODEL)
    optional = {"B": 1, "window": None, "soft_cap": None, "sinks": False}
    missing, unknown = [n for n in needed if n not in dims], [n for n in dims if n not in needed and n not in optional]
    if missing or unknown:
        raise ValueError(
            f"{operation}: explain takes {', '.join(needed)}, and {', '.join(optional)} where they matter; "
            f"missing: {', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}"
        )
    for name in ("k_type", "v_type"):
        format_named(dims[name])
    for name in ("T", "H", "G", "N", "S"):
        expect_count(operation, name, dims[name])
    if dims["H"] % dims["G"]:
        raise ValueError(f"{operation}: {dims['H']} query heads cannot share {dims['G']} KV heads evenly")
    if dims.get("window") is not None:
        expect_count(operation, "window", dims["window"])
    if dims.get("soft_cap") is not None:
        expect_soft_cap(operation, dims["soft_cap"])
    return {**{n: dims[n] for n in needed}, **{n: dims.get(n, default) for n, default in optional.items()}}
