"""Memory that implementations take until a call is done: of a large batch over long caches it can be gigabytes."""

from __future__ import annotations

from pallas_kernels.kv_formats import format_named
from pallas_kernels.table import Dims

OF_ROUNDS = 2**30
"""The most bytes that the decoded cache of a layer may take in a round. Every round decodes all of it, however much of
it is seen."""
OF_PROMPTS = 2**34
"""The same for a piece of a prompt, which has more to do with it. Layers are decoded one after the other, and a device
that holds the caches of all has room for one of them."""


def quantized_stores(dims: Dims) -> int:
    """How many of keys and values are to be decoded."""
    return sum(format_named(dims[name]).quantized for name in ("k_type", "v_type"))


def too_much_to_decode(dims: Dims, most: int) -> str | None:
    """Why a cache cannot be decoded whole, to bfloat16, or None."""
    num_bytes = 2 * quantized_stores(dims) * dims.get("B", 1) * dims["S"] * dims["G"] * dims["N"]
    if num_bytes > most:
        return f"the decoded cache would take {num_bytes / 2**30:.1f} GiB, which is over {most / 2**30:g}"
    return None


def too_many_sums(dims: Dims, sums: int, most: int, *, multiple: int = 1) -> str | None:
    """Why the weighted sums of values that splits leave behind take too much memory, or None.

    Args:
        dims: of a call.
        sums: float32 vectors of N for each query.
        most: bytes.
        multiple: to which the queries of a KV head are padded.
    """
    queries = dims["G"] * multiple * -(-dims["T"] * dims["H"] // dims["G"] // multiple)
    if (num_bytes := 4 * dims.get("B", 1) * queries * sums * dims["N"]) > most:
        return f"what the splits have would take {num_bytes / 2**20:.0f} MiB, which is over {most >> 20}"
    return None
