"""Attention of T query rows over the slots of a cache that each row sees: those of a round, or of a prompt.

The keys and values of the rows are in the cache already. The rows of a sequence may have any positions, but kernels for
many rows read least when neighbouring rows have neighbouring ones.

Scores and softmax are float32. Query head h reads KV head h // (H / G). Queries enter the rotation in which keys are
kept, and the output leaves that of the values; no entry of a cache is rotated.
"""

from typing import Any

from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.cache_attention.arguments import check, complete_dims
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.implementations import CACHE_ATTENTION
from pallas_kernels.kv_formats import KVStore


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
        q: queries, float32, bfloat16 or float16.
        k, v: [B, S, G, N], in any formats.
        positions: a row sees what `visible_slots` says of its position.
        scale: of the scores; a number, no array.
        window: see `visible_slots`; at least 1.
        soft_cap: scaled scores become soft_cap * tanh(score / soft_cap).
        sinks: for each query head a score without a value: it takes its share of the softmax from the slots.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: arguments that do not fit together, or an implementation that does not fit.
    """
    call = Call(q, k, v, positions, scale, window, soft_cap, sinks)
    check("cache_attention.attend", call)
    return dispatch.choose(CACHE_ATTENTION, impl, call.dims).run(call).astype(q.dtype)


def explain(*, platform: str | None = None, **dims: Any) -> str:
    """Which implementation `attend` chooses, and why not the others.

    Args:
        platform: as named by `jax.default_backend()`; default: that of the default device.
        dims: sizes T, H, G, N and S, the formats k_type and v_type, and where they are used
            window, soft_cap and sinks=True.

    Raises:
        ValueError: sizes or formats missing.
    """
    return dispatch.explain(CACHE_ATTENTION, complete_dims("cache_attention", dims), platform)
