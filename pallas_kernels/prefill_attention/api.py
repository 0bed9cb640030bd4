"""Attention of a prompt's rows over the slots of a cache that each row sees, those of the prompt itself among them.

It is what `verify_attention` computes, from implementations that are made for many rows.
"""

from typing import Any

from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.prefill_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.verify_attention.arguments import check, complete_dims, dims_of


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
    """The weighted values, in the dtype of q; see `verify_attention.attend` for arguments and errors.

    The keys and values of the rows are in the cache already. The rows of a sequence may have any positions, but a
    kernel reads least when neighbouring rows have neighbouring ones.
    """
    check("prefill_attention.attend", q, k, v, positions, scale, window, soft_cap, sinks)
    dims = dims_of(q, k, v, soft_cap, sinks)
    run = dispatch.choose("prefill_attention", IMPLEMENTATIONS, impl, dims).run
    return run(q, k, v, positions, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks).astype(q.dtype)


def explain(*, platform: str | None = None, **dims: Any) -> str:
    """Which implementation `attend` chooses, and why not the others; see `verify_attention.explain`."""
    return dispatch.explain("prefill_attention", IMPLEMENTATIONS, complete_dims("prefill_attention", dims), platform)
