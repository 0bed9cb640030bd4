"""What computes the operations of the gated delta rule."""

from collections.abc import Callable
from typing import Any

from pallas_kernels.capability import on_hopper
from pallas_kernels.choices import FEW
from pallas_kernels.dispatch import Form, Operation, kernel, mosaic_gpu_kernel, operation, triton_kernel
from pallas_kernels.gated_delta import (
    cpu_native,
    pallas_gpu_prefill,
    pallas_gpu_registers,
    pallas_gpu_snapshots,
    pallas_gpu_tokens,
    pallas_gpu_verify,
    pallas_tpu_prefill,
    pallas_tpu_snapshots,
    pallas_tpu_verify,
    reference,
    triton_prefill,
    triton_recurrence,
    xla_chunked,
    xla_recurrent,
    xla_wy,
)
from pallas_kernels.gated_delta.config import tpu_unfit
from pallas_kernels.gated_delta.padding import masked, zeroed
from pallas_kernels.table import Dims


def _of_few(unfit: Callable[..., str | None]) -> Callable[..., str | None]:
    """`unfit` for a kernel that takes one token after the other."""

    def call(dims: Dims, **settings: Any) -> str | None:
        if dims["T"] > FEW:
            return f"T={dims['T']} is more than {FEW} tokens, which follow each other"
        return unfit(dims, **settings)

    return call


def _on_cpu(run: Callable[..., Any]) -> Form:
    return Form(run, cpu_native.unfit)


def _in_triton(run: Callable[..., Any]) -> dict[str, Form]:
    return triton_kernel("triton", run, triton_recurrence.unfit)


OPERATIONS: dict[str, Operation] = {
    "prefill": operation(
        "gated_delta.prefill",
        cpu_native=_on_cpu(cpu_native.prefill),
        xla_chunked=Form(masked(xla_chunked.prefill)),
        xla_recurrent=Form(masked(xla_recurrent.prefill)),
        **kernel("pallas_tpu", zeroed(pallas_tpu_prefill.prefill), tpu_unfit),
        # Zeros for padding also keep XLA from handing over the values of a single token in place, as a slice of what
        # they are cut from: CUDA graphs do not take a kernel with such an argument.
        **mosaic_gpu_kernel("pallas_gpu", masked(pallas_gpu_tokens.prefill), _of_few(pallas_gpu_registers.unfit)),
        **triton_kernel("triton", zeroed(triton_recurrence.prefill), _of_few(triton_recurrence.unfit)),
        **kernel(
            "pallas_gpu_prefill",
            zeroed(pallas_gpu_prefill.prefill),
            on_hopper(pallas_gpu_prefill.unfit),
            pallas_gpu_prefill.unfit,
        ),
        **triton_kernel("triton_prefill", zeroed(triton_prefill.prefill), triton_prefill.unfit),
        reference=Form(zeroed(reference.prefill)),
    ),
    "verify": operation(
        "gated_delta.verify",
        cpu_native=_on_cpu(cpu_native.verify),
        xla_wy=Form(masked(xla_wy.verify)),
        xla_recurrent=Form(masked(xla_recurrent.verify)),
        **kernel("pallas_tpu", masked(pallas_tpu_verify.verify), pallas_tpu_verify.unfit),
        **mosaic_gpu_kernel("pallas_gpu", pallas_gpu_verify.verify, pallas_gpu_registers.unfit),
        **_in_triton(triton_recurrence.verify),
        reference=Form(zeroed(reference.verify)),
    ),
    "commit": operation(
        "gated_delta.commit",
        cpu_native=_on_cpu(cpu_native.commit),
        xla_recurrent=Form(masked(xla_recurrent.commit)),
        **kernel("pallas_tpu", zeroed(pallas_tpu_verify.commit), pallas_tpu_verify.unfit),
        **mosaic_gpu_kernel("pallas_gpu", pallas_gpu_verify.commit, pallas_gpu_registers.unfit),
        **_in_triton(triton_recurrence.commit),
        reference=Form(zeroed(reference.commit)),
    ),
    "verify_snapshots": operation(
        "gated_delta.verify_snapshots",
        cpu_native=_on_cpu(cpu_native.verify_snapshots),
        xla_recurrent=Form(zeroed(xla_recurrent.verify_snapshots)),
        **kernel("pallas_tpu", zeroed(pallas_tpu_snapshots.verify_snapshots), tpu_unfit),
        **mosaic_gpu_kernel("pallas_gpu", zeroed(pallas_gpu_snapshots.verify_snapshots), pallas_gpu_registers.unfit),
        **_in_triton(triton_recurrence.verify_snapshots),
        reference=Form(zeroed(reference.verify_snapshots)),
    ),
}
"""The four operations by their names without "gated_delta."."""
