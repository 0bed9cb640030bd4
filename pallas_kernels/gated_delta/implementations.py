"""The implementations of every operation, in order of preference.

The Pallas and Triton kernels are tested under interpreters and lowered for their platforms, but not yet measured on a
device: they run when named.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.gated_delta import (
    cpu_native,
    pallas_gpu_prefill,
    pallas_gpu_registers,
    pallas_gpu_snapshots,
    pallas_gpu_verify,
    pallas_tpu_prefill,
    pallas_tpu_snapshots,
    pallas_tpu_verify,
    reference,
    triton_recurrence,
    xla_chunked,
    xla_recurrent,
    xla_wy,
)
from pallas_kernels.gated_delta.config import tpu_unfit
from pallas_kernels.gated_delta.padding import RECORDS, masked, zeroed
from pallas_kernels.mosaic_gpu import on_hopper


def _on_tpu(run: Callable[..., Any], **unfit: Any) -> tuple[Implementation, ...]:
    return (
        Implementation("pallas_tpu", run, **unfit),
        Implementation("pallas_tpu_interpret", partial(run, interpret=True), **unfit),
    )


def _on_gpu(run: Callable[..., Any], **unfit: Any) -> tuple[Implementation, ...]:
    return (
        Implementation("pallas_gpu", run, **unfit),
        Implementation("pallas_gpu_interpret", partial(run, interpret=True), **unfit),
    )


def _in_triton(run: Callable[..., Any]) -> tuple[Implementation, ...]:
    return (
        Implementation("triton", run, unfit=triton_recurrence.unfit),
        Implementation(
            "triton_interpret", partial(run, interpret=True), unfit=partial(triton_recurrence.unfit, interpreted=True)
        ),
    )


def _on_cpu(run: Callable[..., Any]) -> Implementation:
    return Implementation("cpu_native", run, frozenset({"cpu"}), cpu_native.unfit)


IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "prefill": (
        _on_cpu(cpu_native.prefill),
        Implementation("xla_chunked", masked(xla_chunked.prefill), ANYWHERE),
        Implementation("xla_recurrent", masked(xla_recurrent.prefill)),
        *_on_tpu(zeroed(pallas_tpu_prefill.prefill), unfit=tpu_unfit),
        Implementation("pallas_gpu", zeroed(pallas_gpu_prefill.prefill), unfit=on_hopper(pallas_gpu_prefill.unfit)),
        Implementation(
            "pallas_gpu_interpret",
            partial(zeroed(pallas_gpu_prefill.prefill), interpret=True),
            unfit=pallas_gpu_prefill.unfit,
        ),
        Implementation("reference", zeroed(reference.prefill)),
    ),
    "verify": (
        _on_cpu(cpu_native.verify),
        Implementation("xla_wy", masked(xla_wy.verify), ANYWHERE),
        Implementation("xla_recurrent", masked(xla_recurrent.verify)),
        *_on_tpu(masked(pallas_tpu_verify.verify), unfit=pallas_tpu_verify.unfit),
        *_on_gpu(masked(pallas_gpu_verify.verify), unfit=pallas_gpu_registers.unfit),
        *_in_triton(triton_recurrence.verify),
        Implementation("reference", zeroed(reference.verify)),
    ),
    "commit": (
        _on_cpu(cpu_native.commit),
        Implementation("xla_recurrent", masked(xla_recurrent.commit, RECORDS), ANYWHERE),
        *_on_tpu(zeroed(pallas_tpu_verify.commit, RECORDS), unfit=pallas_tpu_verify.unfit),
        *_on_gpu(zeroed(pallas_gpu_verify.commit, RECORDS), unfit=pallas_gpu_registers.unfit),
        *_in_triton(triton_recurrence.commit),
        Implementation("reference", zeroed(reference.commit, RECORDS)),
    ),
    "verify_snapshots": (
        _on_cpu(cpu_native.verify_snapshots),
        Implementation("xla_recurrent", zeroed(xla_recurrent.verify_snapshots), ANYWHERE),
        *_on_tpu(zeroed(pallas_tpu_snapshots.verify_snapshots), unfit=tpu_unfit),
        *_on_gpu(zeroed(pallas_gpu_snapshots.verify_snapshots), unfit=pallas_gpu_registers.unfit),
        *_in_triton(triton_recurrence.verify_snapshots),
        Implementation("reference", zeroed(reference.verify_snapshots)),
    ),
}
