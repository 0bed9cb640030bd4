"""The convolution for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU): each input is read once.

A warpgroup walks along some tokens of a tile of channels and keeps the last W - 1 inputs in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.block_sizes import BlockSizes, between, one_of
from pallas_kernels.causal_conv1d.example import MODEL_SHAPES, example
from pallas_kernels.mosaic_gpu import WARPGROUP, kernel_options, load, plgpu
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

MAX_WIDTH = 16
MAX_TOKENS = 64


@dataclass(frozen=True)
class Config(BlockSizes):
    """per_thread: channels of a thread, 1, 2 or 4; tokens: that a program walks along, at most 64."""

    per_thread: int = one_of(1, 2, 4)
    tokens: int = between(1, MAX_TOKENS)


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if dims["T"] < 1:
        return "T=0 leaves nothing to do"
    if dims["C"] % WARPGROUP:
        return f"C={dims['C']} is not a multiple of {WARPGROUP}"
    return f"W={dims['W']} is over {MAX_WIDTH}" if dims["W"] > MAX_WIDTH else None


def heuristic(dims: Dims) -> Config:
    """Tokens and channels of a program, chosen so that a call with few tokens still has many programs."""
    return Config(1 if dims["T"] <= 16 else _widest(dims["C"]), min(dims["T"], 16))


def candidates(dims: Dims) -> list[Config]:
    """Configs with every number of channels a thread that divides C, and with several lengths."""
    lengths = dict.fromkeys(min(dims["T"], tokens) for tokens in (1, 8, 16, 32))
    return [Config(per, tokens) for per in (1, 2, 4) if per <= _widest(dims["C"]) for tokens in lengths]


def _widest(n_channels: int) -> int:
    return next(per for per in (4, 2, 1) if n_channels % (WARPGROUP * per) == 0)


def _body(
    inputs_ref: Any, weight_ref: Any, out_ref: Any,
    *, per_thread: int, tokens: int, activation: str | None, interpreted: bool,
) -> None:  # fmt: skip
    row, tile, chunk = lax.axis_index("row"), lax.axis_index("tile"), lax.axis_index("chunk")
    n_taps, channels = weight_ref.shape[0], WARPGROUP * per_thread
    columns = pl.ds(tile * channels, channels)
    layout = plgpu.Layout.WG_STRIDED((channels,), vec_size=per_thread)

    def values(ref: Any) -> Array:
        return load(ref, layout, interpreted=interpreted).astype(jnp.float32)

    # The last chunk may begin in the one before: both then write the same.
    start = jnp.minimum(chunk * tokens, out_ref.shape[1] - tokens)
    taps = [values(weight_ref.at[tap, columns]) for tap in range(n_taps)]
    window = [values(inputs_ref.at[row, start + tap, columns]) for tap in range(n_taps - 1)]
    for t in range(tokens):
        window.append(values(inputs_ref.at[row, start + (t + n_taps - 1), columns]))
        terms = [x * tap for x, tap in zip(window, taps, strict=True)]
        out = sum(terms[1:], terms[0])
        out = out / (1 + jnp.exp(-out)) if activation == "silu" else out
        out_ref[row, start + t, columns] = out.astype(out_ref.dtype)
        window.pop(0)


@partial(jax.jit, static_argnames=("activation", "dtype", "config", "interpret"))
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
    tokens, per_thread = min(config.tokens, n_tokens), min(config.per_thread, _widest(n_channels))
    return pl.kernel(
        partial(_body, per_thread=per_thread, tokens=tokens, activation=activation, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct((n_rows, n_tokens, n_channels), dtype),
        mesh=plgpu.Mesh(
            grid=(n_rows, n_channels // (WARPGROUP * per_thread), pl.cdiv(n_tokens, tokens)),
            grid_names=("row", "tile", "chunk"),
        ),
        name="causal_conv1d",
        **kernel_options(interpreted=interpret),
    )(inputs, weight.T.astype(jnp.float32))


TUNABLE = Tunable(
    "causal_conv1d",
    "pallas_gpu",
    Config,
    heuristic,
    candidates,
    MODEL_SHAPES,
    example,
    partial(convolve, activation="silu", dtype=jnp.bfloat16),
)
