"""The convolution by the native CPU kernels: a token's bits depend on nothing but its window."""

from __future__ import annotations

from functools import partial

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


def convolve(inputs: Array, weight: Array, *, activation: str | None, dtype: DTypeLike) -> Array:
    """`inputs` [B, W-1+T, C] with the window in front; returns [B, T, C]. Derivatives are those of `xla_shifted`."""
    return _differentiable(activation, inputs.astype(jnp.float32), weight.astype(jnp.float32)).astype(dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiable(activation: str | None, inputs: Array, weight: Array) -> Array:
    # A program that is lowered here for another platform has no native kernels there.
    forms = {"cpu": _run, "default": _elsewhere}
    forms = {platform: partial(form, activation) for platform, form in forms.items()}
    return jax.lax.platform_dependent(inputs, weight, **forms)


@_differentiable.defjvp
def _derivative(activation: str | None, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return jax.jvp(partial(_elsewhere, activation), primals, tangents)


def _elsewhere(activation: str | None, inputs: Array, weight: Array) -> Array:
    return xla_shifted.convolve(inputs, weight, activation=activation, dtype=jnp.float32)


def _run(activation: str | None, inputs: Array, weight: Array) -> Array:
    (n_rows, n_inputs, n_channels), n_taps = inputs.shape, weight.shape[1]
    call = jax.ffi.ffi_call(
        native.target("specjax_causal_conv1d"),
        jax.ShapeDtypeStruct((n_rows, n_inputs - n_taps + 1, n_channels), jnp.float32),
        vmap_method="sequential",
    )
    return call(inputs, weight, isa=native.instruction_set(), silu=activation == "silu")
