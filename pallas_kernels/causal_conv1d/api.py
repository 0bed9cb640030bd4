"""Causal depthwise convolution over a short window that the sequence carries."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from pallas_kernels.causal_conv1d import xla

Activation = Literal["silu"]


def causal_conv1d(
    x: Float[Array, "B T C"],
    weight: Float[Array, "C W"],
    window: Float[Array, "B W-1 C"],
    *,
    activation: Activation | None = "silu",
    impl: str | None = None,
) -> tuple[Float[Array, "B T C"], Float[Array, "B W-1+T C"]]:
    """Output of each token, and the window followed by x: rows n .. n + W - 2 of it are the window after n tokens."""
    inputs = jnp.concatenate([window, x.astype(window.dtype)], axis=1)
    return xla.causal_conv1d(inputs, weight, activation=activation).astype(x.dtype), inputs


def window_at(inputs: Float[Array, "B P C"], offset: Int[Array, " B"], width: int) -> Float[Array, "B width C"]:
    """Rows offset[b] .. offset[b] + width - 1 of each sequence."""
    return jax.vmap(lambda rows, start: lax.dynamic_slice_in_dim(rows, start, width))(inputs, offset)
