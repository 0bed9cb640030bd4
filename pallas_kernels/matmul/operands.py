"""What kernels on planes multiply: blocks of rows, and the matrix of a stack that each of them meets."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels.matmul.config import FEW_ROWS
from pallas_kernels.matmul.formats import FORMATS, BlockFormat, tq_rotation, turned
from pallas_kernels.matmul.planes import CHUNK, PLANES, pack
from pallas_kernels.matmul.qtensor import QTensor, from_blocks
from pallas_kernels.matmul.random_blocks import random_blocks
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

MODEL_SIZES = ((17408, 5120), (5120, 17408))
"""N and K of the largest matrices of Qwen3.6-27B, which kernels are timed with."""


def wrong_layout(dims: Dims) -> str | None:
    """Why kernels on planes cannot serve a call."""
    return None if dims["layout"] == PLANES else f"reads the layout {PLANES!r}, see `prepare`"


MOST_BLOCKS = 2**16 - 1
"""The largest third axis of a grid of CUDA."""


def unfit_for_many_rows(dims: Dims) -> str | None:
    """Why kernels of prompts for GPUs cannot serve a call. Blocks of rows are the third axis of their grid."""
    return wrong_layout(dims) or (f"B={dims['B']} is over {MOST_BLOCKS}" if dims.get("B", 1) > MOST_BLOCKS else None)


def unfit_for_few_rows(dims: Dims) -> str | None:
    """Why kernels of few rows, on planes, cannot serve a call."""
    return wrong_layout(dims) or (f"M={dims['M']} is over {FEW_ROWS}" if dims["M"] > FEW_ROWS else None)


def num_rows(x: Float[Array, "... K"], index: Int[Array, " B"] | None) -> int:
    """Rows of a block; all rows are one where there is no index."""
    return math.prod(x.shape[:-1]) if index is None else x.shape[1]


AS_GIVEN = ("bfloat16", "float16", "float32")
"""Types of x that kernels read as they are."""


@dataclass(frozen=True)
class Operands:
    """A product as kernels take it.

    Attributes:
        kind: the format of the matrices.
        blocks: rows with the padded width of the matrices; rotated where the matrices are. If no type was asked for,
            they have that of x where it is one of `AS_GIVEN` and nothing was rotated, else float32.
        numbers: of the matrix that each block is multiplied with; below zero for blocks that nobody reads.
        parts: of a stack of matrices in planes.
        shape: of the result.
    """

    kind: BlockFormat
    blocks: Float[Array, "B M K"]
    numbers: Int[Array, " B"]
    parts: dict[str, Array]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, x: Array, weight: QTensor, index: Int[Array, " B"] | None, dtype: DTypeLike | None = None) -> Operands:
        """x [..., K], in a type, and the weight: a matrix, or with an index a stack."""
        kind = FORMATS[weight.format]
        if dtype is None:
            dtype = x.dtype if x.dtype.name in AS_GIVEN and not kind.rotated else jnp.float32
        x = turned(x, tq_rotation().T) if kind.rotated else x
        parts = weight.parts if index is not None else {name: part[None] for name, part in weight.parts.items()}
        n_matrices, plane_rows, _ = parts["plane0"].shape
        blocks = (x.reshape(1, -1, weight.width) if index is None else x).astype(dtype)
        blocks = jnp.pad(blocks, ((0, 0), (0, 0), (0, plane_rows * 8 // kind.planes[0] - weight.width)))
        numbers = jnp.zeros(1, jnp.int32) if index is None else jnp.minimum(index, n_matrices - 1).astype(jnp.int32)
        return cls(kind, blocks, numbers, parts, (*x.shape[:-1], weight.rows))

    @property
    def chunks(self) -> int:
        """How many chunks make up the columns of a matrix."""
        return self.blocks.shape[-1] // CHUNK

    @property
    def lanes(self) -> int:
        """The rows of a matrix, padded."""
        return self.parts["plane0"].shape[-1]

    def result(self, out: Float[Array, "B rows lanes"]) -> Float[Array, "... N"]:
        """The product in its own shape, without the rows and lanes that are padding."""
        return out[:, : self.blocks.shape[1], : self.shape[-1]].reshape(self.shape)


def added(shares: Float[Array, "splits B rows lanes"]) -> Float[Array, "B rows lanes"]:
    """The sum of shares, in their order."""
    return functools.reduce(jnp.add, [shares[i] for i in range(len(shares))])


def example(dims: Dims) -> tuple[Array, QTensor]:
    """A call of such sizes, to time a kernel with; of 4 rows unless they say it."""
    blocks = random_blocks(np.random.default_rng(0), dims["format"], (dims["N"], dims["K"]))
    x = normal(1, dims.get("M", 4), dims["K"], dtype=jnp.bfloat16)
    return x, pack(from_blocks(jnp.asarray(blocks), dims["format"]))


def model_shapes(*rows: int) -> tuple[Dims, ...]:
    """Sizes of models' matrices in two formats, for numbers of rows where these matter."""
    sizes = [{"N": n, "K": k, "format": name} for name in ("Q8_0", "Q4_K") for n, k in MODEL_SIZES]
    return tuple({"M": m, **size} for size in sizes for m in rows) or tuple(sizes)
