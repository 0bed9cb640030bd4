"""Block sizes of the Pallas kernels. They change speed and memory, not results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, at_least_one, one_of
from pallas_kernels.gated_delta.tokens import Records, Tokens
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable

Example = Callable[[Dims], tuple[Any, ...]]
"""Makes arguments to time a kernel with."""

SHAPES: tuple[Dims, ...] = tuple(
    {"Hk": 16, "Hv": hv, "Dk": 128, "Dv": 128}
    for hv in (16, 32, 48)  # Qwen3.5-0.8B, Qwen3.5-35B-A3B, Qwen3.6-27B
)
"""Sizes of real models, which configurations are chosen by."""

_STATE_BLOCK = 2**20
"""Bytes of state in one grid step on a TPU. VMEM has 16 MiB; `commit` keeps four such blocks in it, snapshots five."""

_MOST_STATE = 2 * _STATE_BLOCK
"""Bytes of the states of one key head that the TPU compiler still finds room for, whatever the operation."""

_MOST_KEY_WIDTH = 1024
"""Keys and queries stand as columns in the TPU kernels, each as wide as 128 lanes."""


@dataclass(frozen=True)
class TpuConfig(BlockSizes):
    """`key_heads` of one grid step, each with all value heads that use it; divides Hk."""

    key_heads: int = at_least_one()


def tpu_candidates(dims: Dims) -> list[TpuConfig]:
    """Configs whose states fit into a block, and the one with a single key head."""
    per_key_head = _tpu_state_bytes(dims)
    divisors = [n for n in range(1, dims["Hk"] + 1) if dims["Hk"] % n == 0]
    return [TpuConfig(n) for n in divisors if n == 1 or n * per_key_head <= _STATE_BLOCK]


def tpu_unfit(dims: Dims) -> str | None:
    """Why not even one key head fits into a grid step of the TPU kernels, or None."""
    if (size := _tpu_state_bytes(dims)) > _MOST_STATE:
        return f"the states of a key head take {size / 2**20:.3g} MiB of VMEM: made for at most {_MOST_STATE >> 20} MiB"
    if dims["Dk"] > _MOST_KEY_WIDTH:
        return f"Dk={dims['Dk']} is more than {_MOST_KEY_WIDTH}"
    return None


def _tpu_state_bytes(dims: Dims) -> int:
    """Bytes of the states of a key head's value heads, in whole tiles of 8 x 128."""
    return dims["Hv"] // dims["Hk"] * (-(-dims["Dk"] // 8) * 8) * (-(-dims["Dv"] // 128) * 128) * 4


def tpu_heuristic(dims: Dims) -> TpuConfig:
    """The largest block that fits, because each step costs a fixed time besides its transfers."""
    return tpu_candidates(dims)[-1]


@dataclass(frozen=True)
class TpuPrefillConfig(BlockSizes):
    """`chunk` tokens at a time, of `key_heads` in one grid step as in TpuConfig."""

    key_heads: int = at_least_one()
    chunk: int = one_of(32, 64, 128)


def tpu_prefill_candidates(dims: Dims) -> list[TpuPrefillConfig]:
    """The configs of `tpu_candidates`, each with every chunk length."""
    return [TpuPrefillConfig(heads.key_heads, chunk) for heads in tpu_candidates(dims) for chunk in (32, 64, 128)]


def tpu_prefill_heuristic(dims: Dims) -> TpuPrefillConfig:
    """One key head, because a chunk is enough work for a step. 64 tokens, as in the published kernels."""
    return TpuPrefillConfig(1, 64)


@dataclass(frozen=True)
class GpuConfig(BlockSizes):
    """`columns` of a head's state that one warpgroup holds in registers; divides Dv."""

    columns: int = one_of(32, 64, 128)


def gpu_candidates(dims: Dims) -> list[GpuConfig]:
    """Configs with 32 columns, and with 64 and 128 if a thread then holds at most 128 values."""
    fitting = [n for n in (64, 128) if dims["Dv"] % n == 0 and dims["Dk"] * n <= 128 * 128]
    return [GpuConfig(n) for n in (32, *fitting)]


def gpu_heuristic(dims: Dims) -> GpuConfig:
    """The widest up to 64 columns, which leaves half of the registers free at Dk = 128."""
    return [config for config in gpu_candidates(dims) if config.columns <= 64][-1]


TIMED: dict[str, Any] = {"head_map": "tiled", "scale": 1.0}
"""Settings of a call that is timed."""


def example_tokens(dims: Dims, n_tokens: int = 4) -> tuple[Tokens, Array, Array]:
    """Arguments to time a kernel with: tokens and the state of one row, and their number."""
    hk, hv, dk, dv = (dims[axis] for axis in ("Hk", "Hv", "Dk", "Dv"))
    q, k = (normal(seed, 1, n_tokens, hk, dk) * dk**-0.5 for seed in (0, 1))
    g, beta = -jax.nn.softplus(normal(2, 1, n_tokens, hv) - 3), jax.nn.sigmoid(normal(3, 1, n_tokens, hv))
    tokens = Tokens(q, k, normal(4, 1, n_tokens, hv, dv), g, beta)
    return tokens, normal(5, 1, hv, dk, dv), jnp.array([n_tokens])


def example_token(dims: Dims) -> tuple[Tokens, Array, Array]:
    """The same with one token."""
    return example_tokens(dims, 1)


def example_records(dims: Dims) -> tuple[Records, Array, Array]:
    """Records of four tokens, the state of one row, and their number."""
    tokens, state, n_valid = example_tokens(dims)
    return Records(tokens.k, tokens.v, tokens.g), state, n_valid


def example_slots(dims: Dims) -> tuple[Tokens, Array, Array, Array]:
    """Four tokens, four slots, the slot to read, and the number of tokens."""
    tokens, state, n_valid = example_tokens(dims)
    return tokens, normal(6, 1, 4, *state.shape[1:]), jnp.zeros((1,), jnp.int32), n_valid


def tpu_tunable(operation: str, example: Example, run: Callable[..., Any]) -> Tunable[TpuConfig]:
    """A kernel that goes by TpuConfig."""
    name = f"gated_delta.{operation}"
    return Tunable(name, "pallas_tpu", TpuConfig, tpu_heuristic, tpu_candidates, SHAPES, example, run)


def gpu_tunable(operation: str, example: Example, run: Callable[..., Any]) -> Tunable[GpuConfig]:
    """A kernel that goes by GpuConfig."""
    name = f"gated_delta.{operation}"
    return Tunable(name, "pallas_gpu", GpuConfig, gpu_heuristic, gpu_candidates, SHAPES, example, run)
