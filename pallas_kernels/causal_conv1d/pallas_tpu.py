"""The convolution for TPUs, in Pallas (Mosaic): each input is read once, outputs are written in their own dtype.

A grid step makes a block of tokens and channels from as many rows of the inputs, and from the first rows of the next
block, which hold the W - 1 tokens that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.block_sizes import BlockSizes, multiple_of
from pallas_kernels.causal_conv1d.example import MODEL_SHAPES, example
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

LANES = 128
HALO = 16
"""Rows of the next block that are read: a tile of bfloat16."""
VALUES = 1 << 18
"""The most values of a block: 1 MiB in float32. VMEM holds five such blocks: two buffers of the input, two of the
output, and one.
"""


@dataclass(frozen=True)
class Config(BlockSizes):
    """tokens and channels of a block, multiples of 16 and of 128; at most 2^18 values."""

    tokens: int = multiple_of(HALO)
    channels: int = multiple_of(LANES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens * self.channels > VALUES:
            raise ValueError(f"tokens * channels is {self.tokens * self.channels}; accepted: up to {VALUES}")


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if dims["T"] < 1:
        return "T=0 leaves nothing to do"
    return f"W={dims['W']} is over {HALO + 1}" if dims["W"] > HALO + 1 else None


def heuristic(dims: Dims) -> Config:
    """All tokens up to 256; few blocks of channels where tokens are few."""
    tokens = min(256, -(-dims["T"] // HALO) * HALO)
    return Config(tokens, 2048 if tokens < 128 else 512)


def candidates(dims: Dims) -> list[Config]:
    """Configs with the tokens of the heuristic, and with twice and four times as many."""
    few = heuristic(dims).tokens
    return [
        Config(tokens, channels)
        for tokens in dict.fromkeys((few, min(few * 2, 512), min(few * 4, 512)))
        for channels in (256, 512, 1024, 2048, 4096)
        if tokens * channels <= VALUES
    ]


def _body(*refs: Any, activation: str | None) -> None:
    *inputs_refs, weight_ref, out_ref, rows_ref = refs
    start = 0
    for ref in inputs_refs:
        rows_ref[start : start + ref.shape[0]] = ref[...].astype(jnp.float32)
        start += ref.shape[0]
    tokens = out_ref.shape[0]
    taps = [rows_ref[tap : tap + tokens] * weight_ref[tap : tap + 1] for tap in range(weight_ref.shape[0])]
    out = sum(taps[1:], taps[0])
    out_ref[...] = (jax.nn.silu(out) if activation == "silu" else out).astype(out_ref.dtype)


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
    (n_rows, n_inputs, n_channels), n_taps = inputs.shape, weight.shape[1]
    n_tokens = n_inputs - n_taps + 1
    config = config_for(TUNABLE, {"B": n_rows, "T": n_tokens, "C": n_channels, "W": n_taps}, config)
    channels = min(config.channels, n_channels)
    # Mosaic has no float16.
    inputs = inputs.astype(jnp.promote_types(inputs.dtype, jnp.bfloat16))
    out_dtype = jnp.promote_types(dtype, jnp.bfloat16)
    if n_tokens <= config.tokens:
        tokens = n_tokens
        inputs_specs = [pl.BlockSpec((None, n_inputs, channels), lambda b, c, t: (b, 0, c))]
        rows = n_inputs
    else:
        tokens, rows = config.tokens, config.tokens + HALO
        last_halo = (n_inputs - 1) // HALO  # behind the last outputs none is needed
        inputs_specs = [
            pl.BlockSpec((None, tokens, channels), lambda b, c, t: (b, t, c)),
            pl.BlockSpec(
                (None, HALO, channels), lambda b, c, t: (b, jnp.minimum((t + 1) * (tokens // HALO), last_halo), c)
            ),
        ]
    out = pl.pallas_call(
        partial(_body, activation=activation),
        grid=(n_rows, pl.cdiv(n_channels, channels), pl.cdiv(n_tokens, tokens)),
        in_specs=[*inputs_specs, pl.BlockSpec((n_taps, channels), lambda b, c, t: (0, c))],
        out_specs=pl.BlockSpec((None, tokens, channels), lambda b, c, t: (b, t, c)),
        out_shape=jax.ShapeDtypeStruct((n_rows, n_tokens, n_channels), out_dtype),
        scratch_shapes=[pltpu.VMEM((rows, channels), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="causal_conv1d",
    )(*[inputs] * len(inputs_specs), weight.T.astype(jnp.float32))
    return out.astype(dtype)


TUNABLE = Tunable(
    "causal_conv1d",
    "pallas_tpu",
    Config,
    heuristic,
    candidates,
    MODEL_SHAPES,
    example,
    partial(convolve, activation="silu", dtype=jnp.bfloat16),
)
