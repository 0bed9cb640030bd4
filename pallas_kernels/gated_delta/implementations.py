"""The implementations of every operation, in order of preference.

The Pallas kernels are tested under the interpreter and lowered for their platforms, but not yet measured on a device:
they run when named.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.gated_delta import (
    pallas_gpu_registers,
    pallas_gpu_snapshots,
    pallas_gpu_verify,
    pallas_tpu_prefill,
    pallas_tpu_snapshots,
    pallas_tpu_verify,
    reference,
    xla_chunked,
    xla_recurrent,
    xla_wy,
)


def _masked(run: Callable[..., Any]) -> Callable[..., Any]:
    """For forms that need no lengths: padding rows reach them as zeros, which change nothing."""

    def call(*args: Any, n_valid: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return call


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


IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "prefill": (
        Implementation("xla_chunked", _masked(xla_chunked.prefill), ANYWHERE),
        Implementation("xla_recurrent", _masked(xla_recurrent.prefill)),
        *_on_tpu(pallas_tpu_prefill.prefill),
        Implementation("reference", reference.prefill),
    ),
    "verify": (
        Implementation("xla_wy", _masked(xla_wy.verify), ANYWHERE),
        Implementation("xla_recurrent", _masked(xla_recurrent.verify)),
        *_on_tpu(_masked(pallas_tpu_verify.verify), unfit=pallas_tpu_verify.unfit),
        *_on_gpu(_masked(pallas_gpu_verify.verify), unfit=pallas_gpu_registers.unfit),
        Implementation("reference", reference.verify),
    ),
    "commit": (
        Implementation("xla_recurrent", _masked(xla_recurrent.commit), ANYWHERE),
        *_on_tpu(pallas_tpu_verify.commit, unfit=pallas_tpu_verify.unfit),
        *_on_gpu(pallas_gpu_verify.commit, unfit=pallas_gpu_registers.unfit),
        Implementation("reference", reference.commit),
    ),
    "verify_snapshots": (
        Implementation("xla_recurrent", xla_recurrent.verify_snapshots, ANYWHERE),
        *_on_tpu(pallas_tpu_snapshots.verify_snapshots),
        *_on_gpu(pallas_gpu_snapshots.verify_snapshots, unfit=pallas_gpu_registers.unfit),
        Implementation("reference", reference.verify_snapshots),
    ),
}
