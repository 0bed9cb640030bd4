"""The convolution by the native CPU kernels: a token's bits depend on nothing but its window."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels import native
from pallas_kernels.causal_conv1d import xla_shifted
from pallas_kernels.table import Dims

MAX_WIDTH = 16


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    if (reason := native.reason()) is not None:
        return reason
    return f"W={dims['W']} is over {MAX_WIDTH}" if dims["W"] > MAX_WIDTH else None


def _run(inputs: Array, weight: Array, *, activation: str | None, dtype: DTypeLike) -> Array:
    (n_rows, n_inputs, n_channels), n_taps = inputs.shape, weight.shape[1]
    call = jax.ffi.ffi_call(
        native.target("specjax_causal_conv1d"),
        jax.ShapeDtypeStruct((n_rows, n_inputs - n_taps + 1, n_channels), jnp.float32),
        vmap_method="sequential",
    )
    given = (x.astype(jnp.float32) for x in (inputs, weight))
    return call(*given, isa=native.instruction_set(), silu=activation == "silu").astype(dtype)


convolve = native.differentiable(_run, xla_shifted.convolve)
"""`inputs` [B, W-1+T, C] with the window in front; returns [B, T, C]. Derivatives are those of `xla_shifted`."""
