"""Chunked gated delta rule for NVIDIA GPUs since Ampere: XLA makes of all chunks what needs no state, and a Triton
kernel runs the chain of states.

A program has some columns of a head's state in registers over all chunks and multiplies on tensor cores. Every factor
is the sum of two numbers of bfloat16, and of the four products the three that count are added, which leaves a relative
error of some 2^-17 for each. Chunks of padding are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, one_of
from pallas_kernels.gated_delta.config import SHAPES, TIMED, example_tokens
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.gated_delta.xla_chunked import CHUNK, joined, transform
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import launch, missing, power_of_two
from pallas_kernels.tuning import Tunable, config_for

LEAST_ROWS, MAX_ROWS = 16, 128
"""Dk that tensor cores multiply at least, and at which the operands of a chunk still fit into registers."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """columns of a head's state in a program: 16 or 32; warps: 4 or 8."""

    columns: int = one_of(16, 32)
    warps: int = one_of(4, 8)


def heuristic(dims: Dims) -> Config:
    """Few columns: operands and state fit into registers, and the chain is long, so a GPU wants many programs."""
    return Config(16, 8)


def candidates(dims: Dims) -> list[Config]:
    """Every config that there is."""
    return [Config(columns, warps) for columns in (16, 32) for warps in (4, 8)]


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why a call of these sizes cannot be served, or None."""
    if dims["Dk"] > MAX_ROWS:
        return f"Dk={dims['Dk']} is more than {MAX_ROWS}"
    return missing(interpreted=interpreted)


def prefill(
    tokens: Tokens,
    state: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: Config | None = None,
) -> tuple[Array, Array]:
    """Outputs in float32 and the final state, in the buffer of `state`; padding rows of the inputs are zero."""
    from pallas_kernels.gated_delta import triton_kernels

    (n_rows, n_tokens, hv, dv), dk = tokens.v.shape, tokens.k.shape[-1]
    config = config_for(TUNABLE, tokens.sizes, config)
    rows = max(LEAST_ROWS, power_of_two(dk))
    q, k = (jnp.pad(x, [(0, 0)] * 3 + [(0, rows - dk)]) for x in (tokens.q, tokens.k))
    chunks = transform(tokens._replace(q=q, k=k), head_map=head_map, chunk=CHUNK)
    state, out = launch(
        triton_kernels.prefill,
        (
            *(-(-n_valid // CHUNK), chunks.decay, chunks.u_alone, chunks.u_of_state, scale * chunks.q_from_start),
            *(scale * chunks.queries_keys, chunks.k_to_end),
        ),
        (state,),
        (jax.ShapeDtypeStruct(chunks.u_alone.shape, jnp.float32),),
        grid=(n_rows * hv, -(-dv // config.columns)),
        warps=config.warps,
        interpret=interpret,
        CHUNKS=chunks.decay.shape[2],
        CHUNK=CHUNK,
        HV=hv,
        DK=dk,
        DV=dv,
        ROWS=rows,
        COLUMNS=config.columns,
        WIDEN=interpret,
    )
    written = jnp.arange(n_tokens) < n_valid[:, None]
    return jnp.where(written[..., None, None], joined(out, n_tokens), 0), state


_TIMED = partial(prefill, **TIMED)
TUNABLE = Tunable(
    "gated_delta.prefill", "triton_prefill", Config, heuristic, candidates, SHAPES, example_tokens, _TIMED
)
