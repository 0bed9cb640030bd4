"""Causal depthwise convolution in plain XLA: W shifted multiply-adds, which XLA fuses into one pass."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike


def convolve(inputs: Array, weight: Array, *, activation: str | None, dtype: DTypeLike) -> Array:
    """`inputs` [B, W-1+T, C] with the window in front; returns [B, T, C]."""
    n_taps = weight.shape[1]
    n_tokens = inputs.shape[1] - n_taps + 1
    inputs, weight = inputs.astype(jnp.float32), weight.astype(jnp.float32)
    taps = [inputs[:, w : w + n_tokens] * weight[:, w] for w in range(n_taps)]
    out = sum(taps[1:], taps[0])
    return (jax.nn.silu(out) if activation == "silu" else out).astype(dtype)
