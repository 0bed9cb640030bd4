"""A few final tokens, verification with records, its commit, and verification with snapshots for NVIDIA GPUs since
Ampere, in Triton.

All are the serial recurrence of triton_kernels.py: a program reads some columns of a head's state into
registers, once, takes them through all tokens, and writes them only where they are to be kept, in place. Tokens from
n_valid[b] on are neither read nor computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, one_of
from pallas_kernels.gated_delta.config import (
    SHAPES,
    TIMED,
    Example,
    example_records,
    example_slots,
    example_token,
    example_tokens,
)
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.tokens import Records, Tokens
from pallas_kernels.table import Dims
from pallas_kernels.triton_launch import launch, missing, power_of_two
from pallas_kernels.tuning import Tunable, config_for

MOST_VALUES = 128
"""The most values of the state that a thread has in registers."""
THREADS = 32
"""How many threads a warp has."""
MAX_ROWS = 512
"""Rows of a state of which 8 columns give a thread of one warp 128 values."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """What a program takes.

    Attributes:
        columns: of a head's state: 8, 16, 32 or 64.
        warps: 1, 2 or 4.
    """

    columns: int = one_of(8, 16, 32, 64)
    warps: int = one_of(1, 2, 4)


def heuristic(dims: Dims) -> Config:
    """One warp, so that no sum waits for others, and few columns: many small programs, as published kernels have."""
    return Config(8, 1)


def candidates(dims: Dims) -> list[Config]:
    """Configs of which a thread holds 8 to 128 values."""
    rows, widest = power_of_two(dims["Dk"]), max(8, power_of_two(dims["Dv"]))
    return [
        Config(columns, warps)
        for columns in (8, 16, 32, 64)
        for warps in (1, 2, 4)
        if columns <= widest and 8 <= rows * columns // (THREADS * warps) <= MOST_VALUES
    ]


def unfit(dims: Dims, *, interpreted: bool = False) -> str | None:
    """Why a call of these sizes cannot be served, or None."""
    if dims["Dk"] > MAX_ROWS:
        return f"Dk={dims['Dk']} is more than {MAX_ROWS}"
    return missing(interpreted=interpreted)


def _sizes(given: Tokens | Records, head_map: HeadMap, tunable: Tunable[Config], config: Config | None) -> Any:
    """Grid, warps and constants of a kernel."""
    (batch, rows), (hk, hv, dk, dv) = given.k.shape[:2], given.sizes.values()
    config = config_for(tunable, given.sizes, config)
    return {
        "grid": (batch * hv, -(-dv // config.columns)), "warps": config.warps,
        "T": rows, "HK": hk, "HV": hv, "DK": dk, "DV": dv, "GROUPED": head_map == "grouped",
        "ROWS": power_of_two(dk), "COLUMNS": config.columns,
    }  # fmt: skip


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
    """Outputs in float32, and the final state in the buffer of `state`."""
    from pallas_kernels.gated_delta import triton_kernels

    values = jax.ShapeDtypeStruct(tokens.v.shape, jnp.float32)
    sizes = _sizes(tokens, head_map, PREFILL, config) | {"SCALE": scale}
    state, out = launch(triton_kernels.extend, (*tokens, n_valid), (state,), (values,), interpret=interpret, **sizes)
    return out, state


def verify(
    tokens: Tokens,
    state: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: Config | None = None,
) -> tuple[Array, Array]:
    """Outputs and u, both [B, T, Hv, Dv] in float32."""
    from pallas_kernels.gated_delta import triton_kernels

    values = jax.ShapeDtypeStruct(tokens.v.shape, jnp.float32)
    sizes = _sizes(tokens, head_map, VERIFY, config)
    inputs = (*tokens, state, n_valid)
    out, u = launch(triton_kernels.verify, inputs, (), (values, values), SCALE=scale, interpret=interpret, **sizes)
    return out, u


def commit(
    records: Records,
    state: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    interpret: bool = False,
    config: Config | None = None,
) -> Array:
    """The state after the first n_valid[b] records, in the buffer of `state`."""
    from pallas_kernels.gated_delta import triton_kernels

    sizes = _sizes(records, head_map, COMMIT, config)
    (state,) = launch(triton_kernels.commit, (*records, n_valid), (state,), (), interpret=interpret, **sizes)
    return state


def verify_snapshots(
    tokens: Tokens,
    slots: Array,
    slot: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: Config | None = None,
) -> tuple[Array, Array]:
    """Outputs in float32, and the slots in their buffer."""
    from pallas_kernels.gated_delta import triton_kernels

    values = jax.ShapeDtypeStruct(tokens.v.shape, jnp.float32)
    sizes = _sizes(tokens, head_map, SNAPSHOTS, config) | {"M": slots.shape[1], "SCALE": scale}
    inputs = (*tokens, slot.astype(jnp.int32), n_valid)
    slots, out = launch(triton_kernels.verify_snapshots, inputs, (slots,), (values,), interpret=interpret, **sizes)
    return out, slots


def _tunable(operation: str, example: Example, run: Callable[..., Any]) -> Tunable[Config]:
    return Tunable(f"gated_delta.{operation}", "triton", Config, heuristic, candidates, SHAPES, example, run)


PREFILL = _tunable("prefill", example_token, partial(prefill, **TIMED))
VERIFY = _tunable("verify", example_tokens, partial(verify, **TIMED))
COMMIT = _tunable("commit", example_records, partial(commit, head_map="tiled"))
SNAPSHOTS = _tunable("verify_snapshots", example_slots, partial(verify_snapshots, **TIMED))
