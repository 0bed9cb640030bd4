"""Calls as models make them, for those who measure."""

import jax.numpy as jnp
from jax import Array

from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

MODEL_SHAPES: tuple[Dims, ...] = tuple(
    {"B": rows, "T": tokens, "C": 10240, "W": 4} for rows, tokens in ((1, 1), (1, 4), (8, 4), (1, 512), (1, 2048))
)
"""The channels of Qwen3.5-27B and 3.6-27B: 16 key heads twice and 48 value heads, 128 wide."""


def example(dims: Dims) -> tuple[Array, Array]:
    """`inputs` in bfloat16, with the window in front, and the weight in float32."""
    inputs = normal(0, dims["B"], dims["W"] - 1 + dims["T"], dims["C"], dtype=jnp.bfloat16)
    return inputs, normal(1, dims["C"], dims["W"])
