"""The convolution for NVIDIA GPUs since Ampere, in Triton.

A program takes some tokens of a tile of channels and adds up the taps in registers. Neighbouring outputs share inputs,
which the cache of a multiprocessor keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.block_sizes import BlockSizes, one_of, power_of_two
from pallas_kernels.causal_conv1d.example import MODEL_SHAPES, example
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import launch, missing
from pallas_kernels.triton_launch import power_of_two as next_power_of_two
from pallas_kernels.tuning import Tunable, config_for

MAX_WIDTH = 16


@dataclass(frozen=True)
class Config(BlockSizes):
    """tokens and channels of a program: powers of two of at most 64 and 1024; warps: 2, 4 or 8."""

    tokens: int = power_of_two(64)
    channels: int = power_of_two(1024)
    warps: int = one_of(2, 4, 8)


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why these sizes cannot be served, or None."""
    if dims["T"] < 1:
        return "T=0 leaves nothing to do"
    return (f"W={dims['W']} is over {MAX_WIDTH}" if dims["W"] > MAX_WIDTH else None) or missing(interpreted=interpreted)


def heuristic(dims: Dims) -> Config:
    """All tokens up to 16; few channels where tokens are few, so that there are many programs."""
    tokens = min(next_power_of_two(dims["T"]), 16)
    return Config(tokens, 256 if tokens < 16 else 128, 4)


def candidates(dims: Dims) -> list[Config]:
    """Configs with 4 to 32 values for each thread."""
    lengths = dict.fromkeys(min(next_power_of_two(dims["T"]), tokens) for tokens in (1, 4, 16, 64))
    return [
        Config(tokens, channels, warps)
        for tokens in lengths
        for channels in (128, 256, 512, 1024)
        for warps in (2, 4, 8)
        if 4 <= tokens * channels // (32 * warps) <= 32
    ]


def convolve(
    inputs: Array,
    weight: Array,
    *,
    activation: str | None,
    dtype: DTypeLike,
    config: Config | None = None,
    interpret: bool = False,
) -> Array:
    """`inputs` [B, W-1+T, C] with the window in front; returns [B, T, C]."""
    from pallas_kernels.causal_conv1d import triton_kernels

    (n_rows, n_inputs, n_channels), n_taps = inputs.shape, weight.shape[1]
    n_tokens = n_inputs - n_taps + 1
    config = config_for(TUNABLE, {"B": n_rows, "T": n_tokens, "C": n_channels, "W": n_taps}, config)
    (out,) = launch(
        triton_kernels.convolve,
        (inputs, weight.T.astype(jnp.float32)),
        (),
        (jax.ShapeDtypeStruct((n_rows, n_tokens, n_channels), dtype),),
        grid=(-(-n_tokens // config.tokens), -(-n_channels // config.channels), n_rows),
        warps=config.warps,
        interpret=interpret,
        T=n_tokens,
        C=n_channels,
        TAPS=n_taps,
        SILU=activation == "silu",
        TOKENS=config.tokens,
        CHANNELS=config.channels,
        WIDEN=interpret,
    )
    return out


TUNABLE = Tunable(
    "causal_conv1d",
    "triton",
    Config,
    heuristic,
    candidates,
    MODEL_SHAPES,
    example,
    partial(convolve, activation="silu", dtype=jnp.bfloat16),
)
