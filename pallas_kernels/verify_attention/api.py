"""Attention of T query rows over the slots of a cache that each row sees.

Scores and softmax are float32. Query head h reads KV head h // (H / G). Queries enter the rotation in which keys are
kept, and the output leaves that of the values; no entry of a cache is rotated.
"""

from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.dispatch import ANYWHERE, Dims, Implementation
from pallas_kernels.kv_formats import KVStore, format_named
from pallas_kernels.verify_attention import cpu_native, reference, xla_floats, xla_tiles


def _quantized(dims: Dims) -> str | None:
    kinds = [dims[name] for name in ("K type", "V type") if format_named(dims[name]).quantized]
    return f"{kinds[0]} is no float type" if kinds else None


IMPLEMENTATIONS = (
    Implementation("cpu_native", cpu_native.attend, frozenset({"cpu"}), cpu_native.unfit),
    Implementation("xla_floats", xla_floats.attend, ANYWHERE, _quantized),
    Implementation("xla_tiles", xla_tiles.attend, ANYWHERE),
    Implementation("reference", reference.attend),
)


def attend(
    q: Float[Array, "B T H N"],
    k: KVStore,
    v: KVStore,
    positions: Int[Array, "B T"],
    *,
    scale: float,
    window: int | None = None,
    impl: str | None = None,
) -> Float[Array, "B T H N"]:
    """The weighted values, in the dtype of q; zeros or other finite numbers for a row that sees nothing.

    Args:
        q: queries.
        k, v: [B, S, G, N], in any formats.
        positions: a row sees what `visible_slots` says of its position.
        scale: of the scores.
        window: see `visible_slots`.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: shapes that do not fit together, or an implementation that does not fit.
    """
    batch, rows, heads, width = q.shape
    if k.shape != v.shape or len(k.shape) != 4 or (k.shape[0], k.shape[3]) != (batch, width):
        raise ValueError(f"attend: q is [B, T, H, N], k and v are [B, S, G, N]; got q {q.shape}, {k.shape}, {v.shape}")
    if heads % k.shape[2]:
        raise ValueError(f"attend: {heads} query heads cannot share {k.shape[2]} KV heads evenly")
    if positions.shape != (batch, rows):
        raise ValueError(f"attend: positions have shape {positions.shape}; [B, T] is {(batch, rows)}")
    run = dispatch.choose("verify_attention", IMPLEMENTATIONS, impl, _dims(q, k, v)).run
    return run(q, k, v, positions, scale=scale, window=window).astype(q.dtype)


def explain(q: Float[Array, "B T H N"], k: KVStore, v: KVStore, platform: str | None = None) -> str:
    """Which implementation `attend` chooses, and why not the others."""
    return dispatch.explain("verify_attention", IMPLEMENTATIONS, _dims(q, k, v), platform)


def _dims(q: Array, k: KVStore, v: KVStore) -> Dims:
    (_, rows, heads, width), (_, capacity, kv_heads, _) = q.shape, k.shape
    return {
        "T": rows, "H": heads, "G": kv_heads, "N": width, "S": capacity, "K type": k.format, "V type": v.format,
    }  # fmt: skip
