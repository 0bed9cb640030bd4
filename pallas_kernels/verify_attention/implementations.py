"""The implementations, in order of preference.

The Pallas and Triton kernels are tested under interpreters, lowered for their platforms and compiled for TPUs, but not
yet measured on a device: they run when named.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pallas_kernels.dispatch import ANYWHERE, Dims, Implementation
from pallas_kernels.kv_formats import format_named
from pallas_kernels.verify_attention import (
    cpu_native,
    pallas_gpu,
    pallas_tpu,
    reference,
    triton_splits,
    xla_floats,
    xla_tiles,
)


def _plain(run: Callable[..., Any]) -> Callable[..., Any]:
    """For a form that has neither soft-cap nor sinks, and whose `unfit` says so."""

    def call(*args: Any, soft_cap: None, sinks: None, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return call


def quantized(dims: Dims) -> str | None:
    """Why a form for caches of floats cannot serve a call."""
    kinds = [dims[name] for name in ("k_type", "v_type") if format_named(dims[name]).quantized]
    return f"{kinds[0]} is no float type" if kinds else None


IMPLEMENTATIONS = (
    Implementation("cpu_native", _plain(cpu_native.attend), frozenset({"cpu"}), cpu_native.unfit),
    Implementation("xla_floats", xla_floats.attend, ANYWHERE, quantized),
    Implementation("xla_tiles", xla_tiles.attend, ANYWHERE),
    Implementation("pallas_tpu", pallas_tpu.attend, unfit=pallas_tpu.unfit),
    Implementation("pallas_tpu_interpret", partial(pallas_tpu.attend, interpret=True), unfit=pallas_tpu.unfit),
    Implementation("pallas_gpu", pallas_gpu.attend, unfit=pallas_gpu.unfit),
    Implementation("pallas_gpu_interpret", partial(pallas_gpu.attend, interpret=True), unfit=pallas_gpu.unfit),
    Implementation("triton", triton_splits.attend, unfit=triton_splits.unfit),
    Implementation(
        "triton_interpret",
        partial(triton_splits.attend, interpret=True),
        unfit=partial(triton_splits.unfit, interpreted=True),
    ),
    Implementation("reference", reference.attend),
)
