"""The totals of a softmax by the native CPU kernel: each row is read once from memory."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels import native
from pallas_kernels.softmax_totals import xla_sums
from pallas_kernels.table import Dims


def unfit(dims: Dims) -> str | None:
    """Why the kernel cannot serve a call."""
    return native.reason()


def _run(x: Array) -> tuple[Array, Array]:
    leading = x.shape[:-1]
    rows = x.reshape(math.prod(leading), x.shape[-1])
    result = jax.ShapeDtypeStruct(rows.shape[:1], jnp.float32)
    call = jax.ffi.ffi_call(
        native.target("specjax_softmax_totals"),
        (result, result),
        vmap_method="sequential",
    )
    log_total, entropy = call(rows, isa=native.instruction_set())
    return log_total.reshape(leading), entropy.reshape(leading)


totals = native.differentiable(_run, xla_sums.totals)
"""The same as `xla_sums.totals`, with the derivatives of that form."""
