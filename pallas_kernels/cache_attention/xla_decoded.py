"""Attention of few rows over quantized caches in plain XLA: decode the whole cache, then multiply as with floats.

The copy is bfloat16, and is there while a layer is computed. It is whole, however little of the cache is in use. On a
GPU that still takes less time than a loop over the tiles in use.
"""

from __future__ import annotations

from dataclasses import replace

from jax import Array

from pallas_kernels.cache_attention import xla_floats
from pallas_kernels.cache_attention.arguments import too_many_rows
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.temporary import OF_ROUNDS, quantized_stores, too_much_to_decode
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.table import Dims


def unfit(dims: Dims) -> str | None:
    """Why the form cannot serve a call."""
    if not quantized_stores(dims):
        return "nothing is to be decoded"
    return too_much_to_decode(dims, OF_ROUNDS) or too_many_rows(dims)


def attend(call: Call) -> Array:
    """[B, T, H, N] float32. Queries, keys, weights and values are rounded to bfloat16."""
    rotated = replace(call, q=call.rotated_queries(), k=decoded(call.k), v=decoded(call.v))
    return call.v.kind.unrotate(xla_floats.attend(rotated), call.q.shape[-1])


def decoded(store: KVStore) -> KVStore:
    """Vectors as they are kept, rotated, in floats."""
    return KVStore.of(store.rotated(), "bf16") if store.kind.quantized else store
