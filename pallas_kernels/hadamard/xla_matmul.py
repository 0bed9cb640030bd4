"""Products with the matrix, or with its two factors: H of N is H of N / block, times (Kronecker) H of block.

Butterflies do log2(N) operations per value instead of N, but XLA's CPU backend takes ten times as long to compile them
and no less time to run them, and other devices have units for matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.block_sizes import BlockSizes, power_of_two
from pallas_kernels.hadamard.example import example
from pallas_kernels.hadamard.reference import matrix
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

UNIT = 128
"""Width of the matrix units of TPUs, and of the groups that KV caches rotate."""


@dataclass(frozen=True)
class Config(BlockSizes):
    """block: width of the inner factor, a power of two; all of N where that is less."""

    block: int = power_of_two()


def heuristic(dims: Dims) -> Config:
    """One product up to the width of a matrix unit."""
    return Config(min(dims["N"], UNIT))


def candidates(dims: Dims) -> list[Config]:
    """Configs from blocks of half a matrix unit up to one product."""
    return [Config(block) for block in (32, 64, 128, 256, 512) if block <= dims["N"]]


def transform(x: Array, before: Array | None, after: Array | None, *, config: Config | None = None) -> Array:
    """Transform each row of x, [..., N]; the result is float32."""
    width = x.shape[-1]
    block = min(config_for(TUNABLE, {"N": width}, config).block, width)
    x = x.astype(jnp.float32)
    x = x if before is None else x * before
    inner = jnp.asarray(matrix(block) * np.float32(width**-0.5))
    if block == width:
        x = jnp.matmul(x, inner, precision="highest")
    else:
        blocks = jnp.matmul(x.reshape(-1, width // block, block), inner, precision="highest")
        outer = jnp.asarray(matrix(width // block))
        x = jnp.einsum("rin,oi->ron", blocks, outer, precision="highest").reshape(x.shape)
    return x if after is None else x * after


TUNABLE = Tunable(
    "hadamard",
    "xla_matmul",
    Config,
    heuristic,
    candidates,
    tuple({"N": width} for width in (64, 128, 256, 512)),
    example,
    partial(transform, before=None, after=None),
)
