"""Attention of T query rows over the slots of a cache that each row sees.

Scores and softmax are float32. Query head h reads KV head h // (H / G). Queries enter the rotation in which keys are
kept, and the output leaves that of the values; no entry of a cache is rotated.
"""

import math
from typing import Any

from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Dims
from pallas_kernels.kv_formats import KVStore, format_named
from pallas_kernels.verify_attention.implementations import IMPLEMENTATIONS


def attend(
    q: Float[Array, "B T H N"],
    k: KVStore,
    v: KVStore,
    positions: Int[Array, "B T"],
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " H"] | None = None,
    impl: str | None = None,
) -> Float[Array, "B T H N"]:
    """The weighted values, in the dtype of q; zeros or other finite numbers for a row that sees nothing.

    Args:
        q: queries.
        k, v: [B, S, G, N], in any formats.
        positions: a row sees what `visible_slots` says of its position.
        scale: of the scores.
        window: see `visible_slots`.
        soft_cap: scaled scores become soft_cap * tanh(score / soft_cap).
        sinks: for each query head a score without a value: it takes its share of the softmax from the slots.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: arguments that do not fit together, or an implementation that does not fit.
    """
    check("attend", q, k, v, positions, soft_cap, sinks)
    dims = dims_of(q, k, v, soft_cap, sinks)
    run = dispatch.choose("verify_attention", IMPLEMENTATIONS, impl, dims).run
    return run(q, k, v, positions, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks).astype(q.dtype)


def explain(*, platform: str | None = None, **dims: Any) -> str:
    """Which implementation `attend` chooses, and why not the others.

    Args:
        platform: as named by `jax.default_backend()`; default: that of the default device.
        dims: sizes T, H, G, N and S, the formats k_type and v_type, and where they are used soft_cap and sinks=True.

    Raises:
        ValueError: sizes or formats missing.
    """
    return dispatch.explain("verify_attention", IMPLEMENTATIONS, complete_dims("verify_attention", dims), platform)


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
    (_, rows, heads, width), (_, capacity, kv_heads, _) = q.shape, k.shape
    return {
        "T": rows, "H": heads, "G": kv_heads, "N": width, "S": capacity, "k_type": k.format, "v_type": v.format,
        "soft_cap": soft_cap, "sinks": sinks is not None,
    }  # fmt: skip


def complete_dims(operation: str, dims: Dims) -> Dims:
    """What `dims_of` gives for a call of such sizes. ValueError for what is missing or not known."""
    needed, optional = ("T", "H", "G", "N", "S", "k_type", "v_type"), {"soft_cap": None, "sinks": False}
    missing, unknown = [n for n in needed if n not in dims], [n for n in dims if n not in needed and n not in optional]
    if missing or unknown:
        raise ValueError(
            f"{operation}: explain takes {', '.join(needed)}, and {' and '.join(optional)} where they are used; "
            f"missing: {', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}"
        )
    for name in ("k_type", "v_type"):
        format_named(dims[name])
    return {**{n: dims[n] for n in needed}, **{n: dims.get(n, default) for n, default in optional.items()}}
