"""The implementations of every operation, in order of preference.

The Pallas kernels are tested under the interpreter and lowered for their platforms, but not yet measured on a device:
they run when named.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.gated_delta import pallas_gpu, pallas_tpu, reference, xla_chunked, xla_recurrent, xla_wy


def _masked(run: Callable[..., Any]) -> Callable[..., Any]:
    """For forms that need no lengths: padding rows reach them as zeros, which change nothing."""

    def call(*args: Any, n_valid: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return call


IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "prefill": (
        Implementation("xla_chunked", _masked(xla_chunked.prefill), ANYWHERE),
        Implementation("xla_recurrent", _masked(xla_recurrent.prefill)),
        Implementation("reference", reference.prefill),
    ),
    "verify": (
        Implementation("xla_wy", _masked(xla_wy.verify), ANYWHERE),
        Implementation("xla_recurrent", _masked(xla_recurrent.verify)),
        Implementation("reference", reference.verify),
    ),
    "verify_snapshots": (
        Implementation("xla_recurrent", xla_recurrent.verify_snapshots, ANYWHERE),
        Implementation("pallas_tpu", pallas_tpu.verify_snapshots),
        Implementation("pallas_tpu_interpret", partial(pallas_tpu.verify_snapshots, interpret=True)),
        Implementation("pallas_gpu", pallas_gpu.verify_snapshots, unfit=pallas_gpu.unfit),
        Implementation(
            "pallas_gpu_interpret", partial(pallas_gpu.verify_snapshots, interpret=True), unfit=pallas_gpu.unfit
        ),
        Implementation("reference", reference.verify_snapshots),
    ),
}

COMMIT = xla_recurrent.commit
