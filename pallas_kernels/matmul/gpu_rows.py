"""Rows of x for products of few rows on NVIDIA GPUs, as whole numbers in a program's shared memory.

A number becomes a whole number of 16 bits times a scale, which it shares with 32 columns of its row. Each program
rounds what it multiplies, so no kernel has to be launched for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jaxtyping import Float, Int8

from pallas_kernels.matmul.gpu_fragments import ROWS
from pallas_kernels.matmul.planes import CHUNK, GROUP
from pallas_kernels.mosaic_gpu import laid_out, load, plgpu

LARGEST, TINY = 127 * 256 + 127, np.float32(1e-33)
"""The largest whole number that is 256 times a number of 8 bits and one more such number; and what counts as the
largest size in groups of smaller numbers, because LARGEST is divided by it."""
MOST_CHUNKS = 8
"""So many are rounded at a time: a thread holds eight numbers of each."""
IN_CHUNK = CHUNK // GROUP


def layout() -> Any:
    """Of numbers [rows, groups, 32]: a warp has a row, and four of its threads have a group."""
    tiling = plgpu.Tiling(((ROWS, IN_CHUNK, GROUP), (8,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-4,), lane_dims=(-3, -2), vector_dim=-1)


def by_groups(x: Float[Array, "B M K"]) -> Float[Array, "B R G 32"]:
    """Rows by groups of columns, with rows of zeros up to a multiple of four."""
    n_blocks, n_rows, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, -n_rows % ROWS), (0, 0)))
    return x.reshape(n_blocks, -1, width // GROUP, GROUP)


def rounded(
    x: Float[Array, "4 G 32"], *, interpreted: bool
) -> tuple[Int8[Array, "4 G 32"], Int8[Array, "4 G 32"], Float[Array, "4 G"]]:
    """Whole numbers in two parts, and the largest size in a group.

    Where that is M, a number x becomes x * LARGEST / M, rounded: 256 times the first part plus the second.
    """
    x = x.astype(jnp.float32)
    largest = jnp.maximum(jnp.max(jnp.abs(x), axis=-1), TINY)
    factor = laid_out(lax.broadcast_in_dim(LARGEST / largest, x.shape, (0, 1)), layout(), interpreted=interpreted)
    whole = jnp.round(x * factor).astype(jnp.int32)
    high = (whole + 128) >> 8
    return high.astype(jnp.int8), (whole - 256 * high).astype(jnp.int8), largest


@dataclass(frozen=True)
class Rows:
    """Sets of four rows of a block, of which some chunks of columns are rounded.

    Attributes:
        x: a reference to the sets of a block [R, G, 32].
        chunks: of 256 columns that are rounded.
        parts: a reference to whole numbers in two parts [R, G', 2, 32] of the groups of these chunks.
        largest: a reference to the largest sizes in them [R, G'].
        interpreted: whether no GPU is there.
    """

    x: Any
    chunks: int
    parts: Any
    largest: Any
    interpreted: bool

    @property
    def sets(self) -> int:
        return self.x.shape[0] // ROWS

    def round(self, first: Array) -> None:
        """Round the chunks from `first`, once all threads have read what was there before."""
        plgpu.commit_smem()
        groups = self.chunks * IN_CHUNK
        for i in range(self.sets):
            rows = pl.ds(i * ROWS, ROWS)
            x = load(self.x.at[rows, pl.ds(first * IN_CHUNK, groups)], layout(), interpreted=self.interpreted)
            high, low, largest = rounded(x, interpreted=self.interpreted)
            self.parts[rows, :, 0] = high
            self.parts[rows, :, 1] = low
            self.largest[rows] = largest
        plgpu.commit_smem()


def shared_memory(rows: int, chunks: int) -> tuple[Any, Any]:
    """What `Rows` need of it: the types of parts and largest."""
    groups = chunks * IN_CHUNK
    return plgpu.SMEM((rows, groups, 2, GROUP), jnp.int8), plgpu.SMEM((rows, groups), jnp.float32)
