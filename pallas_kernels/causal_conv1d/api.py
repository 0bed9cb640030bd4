"""Causal depthwise convolution over a short window that the sequence carries.

Output t sees the tokens t - W + 1 .. t; those before the call come from `window`, the last W - 1 inputs (zeros for a
new sequence). Nothing of a token reaches earlier outputs, so padding at the end of a row, NaN included, is harmless;
which rows become the next window is the caller's choice, through `window_at`.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.arguments import expect_array
from pallas_kernels.causal_conv1d.implementations import CAUSAL_CONV1D

Activation = Literal["silu"]


def causal_conv1d(
    x: Float[Array, "B T C"],
    weight: Float[Array, "C W"],
    window: Float[Array, "B W-1 C"],
    *,
    activation: Activation | None = "silu",
    impl: str | None = None,
) -> tuple[Float[Array, "B T C"], Float[Array, "B W-1+T C"]]:
    """Output of each token in x's dtype, and `inputs`: the window followed by x, in the window's dtype.

    Rows n .. n + W - 2 of `inputs` are the window after n tokens. Computed in float32. ValueError where arguments do
    not fit together.
    """
    expect_array("causal_conv1d", "x", x, "B T C", empty=True)
    expect_array("causal_conv1d", "weight", weight, "C W")
    expect_array("causal_conv1d", "window", window, "B W-1 C", empty=True)
    (b, t, c), w = x.shape, weight.shape[1]
    if weight.shape[0] != c:
        raise ValueError(f"causal_conv1d: weight has shape {weight.shape}; [C W] with x {x.shape} is ({c}, W)")
    if window.shape != (b, w - 1, c):
        raise ValueError(f"causal_conv1d: window has shape {window.shape}; [B W-1 C] is {(b, w - 1, c)}")
    if activation not in ("silu", None):
        raise ValueError(f"causal_conv1d: activation is {activation!r}; accepted: 'silu', None")
    inputs = jnp.concatenate([window, x.astype(window.dtype)], axis=1)
    run = dispatch.choose(CAUSAL_CONV1D, impl, {"B": b, "T": t, "C": c, "W": w}).run
    if x.size == 0:
        return jnp.zeros(x.shape, x.dtype), inputs
    return run(inputs, weight, activation=activation, dtype=x.dtype), inputs


def explain(*, T: int, C: int, W: int, platform: str | None = None) -> str:
    """Which implementation `causal_conv1d` chooses for these sizes, and why not the others."""
    return dispatch.explain(CAUSAL_CONV1D, {"T": T, "C": C, "W": W}, platform)


def window_at(inputs: Float[Array, "B P C"], offset: Int[Array, " B"], width: int) -> Float[Array, "B width C"]:
    """Rows offset[b] .. offset[b] + width - 1 of each sequence, 0 <= offset[b] <= P - width.

    With the `inputs` of `causal_conv1d`, offset n and width W - 1: the window after the first n tokens.
    """
    if inputs.ndim != 3 or not 0 <= width <= inputs.shape[1]:
        raise ValueError(f"window_at: width is {width}; inputs {inputs.shape} [B P C] have 0 .. P rows")
    if offset.shape != inputs.shape[:1]:
        raise ValueError(f"window_at: offset has shape {offset.shape}; [B] is {inputs.shape[:1]}")
    return jax.vmap(lambda rows, start: lax.dynamic_slice_in_dim(rows, start, width))(inputs, offset)
