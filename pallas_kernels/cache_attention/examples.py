"""What block sizes of the attention kernels are measured with."""

import jax.numpy as jnp

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

QWEN3_6_27B = {"H": 24, "G": 4, "N": 256}


def model_shapes(**sizes: int) -> tuple[Dims, ...]:
    """Those of a real model's layer, for some formats."""
    return tuple({**sizes, **QWEN3_6_27B, "k_type": kind, "v_type": kind} for kind in ("bf16", "q8_0", "turbo4"))


def full_cache(dims: Dims) -> tuple[Call]:
    """A sequence of which the last rows, 4 unless the sizes say it, fill the cache."""
    batch, rows, capacity = dims.get("B", 1), dims.get("T", 4), dims["S"]
    k, v = (
        KVStore.of(normal(seed, batch, capacity, dims["G"], dims["N"]), dims[name])
        for seed, name in enumerate(("k_type", "v_type"))
    )
    positions = jnp.broadcast_to(jnp.arange(capacity - rows, capacity), (batch, rows))
    return (Call(normal(2, batch, rows, dims["H"], dims["N"]), k, v, positions, scale=0.1),)
