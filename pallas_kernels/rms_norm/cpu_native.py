"""Norms by the native CPU kernels: a call for what takes XLA four; a row's bits depend on nothing but the row."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels import native
from pallas_kernels.rms_norm import xla_reduce
from pallas_kernels.table import Dims


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    return native.reason()


def _run(x: Array, weight: Array | None, gate: Array | None, *, scale: float, epsilon: float) -> Array:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    nothing = jnp.zeros(0, jnp.float32)
    call = jax.ffi.ffi_call(
        native.target("specjax_rms_norm"),
        jax.ShapeDtypeStruct(rows.shape, jnp.float32),
        vmap_method="sequential",
    )
    settings = {"scale": np.float32(scale), "epsilon": np.float32(epsilon), "isa": native.instruction_set()}
    weight, gate = (nothing if array is None else array for array in (weight, gate))
    return call(rows, weight, gate.reshape(rows.shape) if gate.size else gate, **settings).reshape(x.shape)


normalize = native.differentiable(_run, xla_reduce.normalize)
"""The same as `xla_reduce.normalize`, with the derivatives of that form."""
