"""What computes attention over caches: forms for few rows, for the many of prompts ("_prefill"), and for both.

The kernels that jax ships are not used: those for TPU (flash, splash) take masks that are known when a program is
traced, or keys in pages of their own layout, and no quantized keys; cuDNN's attention cannot even be lowered on a
machine without it, and knows neither soft-cap nor sinks; that of Mosaic GPU takes no lengths of sequences.
"""

from pallas_kernels.cache_attention import (
    cpu_native,
    pallas_gpu,
    pallas_gpu_prefill,
    pallas_gpu_splits,
    pallas_tpu,
    pallas_tpu_prefill,
    reference,
    triton_prefill,
    triton_splits,
    xla_decoded,
    xla_floats,
    xla_tiles,
)
from pallas_kernels.capability import on_hopper
from pallas_kernels.dispatch import Form, kernel, mosaic_gpu_kernel, operation, triton_kernel
from pallas_kernels.kv_formats import format_named
from pallas_kernels.table import Dims


def _quantized(dims: Dims) -> str | None:
    """Why a form for caches of floats cannot serve a call."""
    kinds = [dims[name] for name in ("k_type", "v_type") if format_named(dims[name]).quantized]
    return f"{kinds[0]} is no float type" if kinds else None


CACHE_ATTENTION = operation(
    "cache_attention",
    cpu_native=Form(cpu_native.attend, cpu_native.unfit),
    xla_floats=Form(xla_floats.attend, _quantized, reads_all=True),
    xla_decoded=Form(xla_decoded.attend, xla_decoded.unfit, reads_all=True),
    xla_tiles=Form(xla_tiles.attend, reads_all=True),
    **kernel("pallas_tpu", pallas_tpu.attend, pallas_tpu.unfit),
    **kernel("pallas_tpu_prefill", pallas_tpu_prefill.attend, pallas_tpu_prefill.unfit),
    **mosaic_gpu_kernel("pallas_gpu", pallas_gpu.attend, pallas_gpu.unfit),
    **kernel(
        "pallas_gpu_splits", pallas_gpu_splits.attend, on_hopper(pallas_gpu_splits.unfit), pallas_gpu_splits.unfit
    ),
    **kernel(
        "pallas_gpu_prefill", pallas_gpu_prefill.attend, on_hopper(pallas_gpu_prefill.unfit), pallas_gpu_prefill.unfit
    ),
    **triton_kernel("triton", triton_splits.attend, triton_splits.unfit),
    **triton_kernel("triton_prefill", triton_prefill.attend, triton_prefill.unfit),
    reference=Form(reference.attend, reads_all=True),
)
