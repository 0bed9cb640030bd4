"""The law of the causal depthwise convolution: tap W - 1 meets the token itself, tap 0 the one W - 1 tokens back."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike


def convolve(inputs: Array, weight: Array, *, activation: str | None, dtype: DTypeLike) -> Array:
    """`inputs` [B, W-1+T, C] with the window in front; returns [B, T, C]. Computed in the dtype of the weight."""
    n_taps = weight.shape[1]
    outputs = []
    for t in range(inputs.shape[1] - n_taps + 1):
        total = jnp.zeros((inputs.shape[0], weight.shape[0]), weight.dtype)
        for tap in range(n_taps):
            total = total + weight[:, tap] * inputs[:, t + tap].astype(weight.dtype)
        outputs.append(jax.nn.silu(total) if activation == "silu" else total)
    return jnp.stack(outputs, axis=1).astype(dtype)
