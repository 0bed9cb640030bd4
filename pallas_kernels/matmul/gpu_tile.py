"""What a program of the product of few rows works on, on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.matmul.formats import BlockFormat


@dataclass(frozen=True)
class Tile:
    """Some columns of the planes of a matrix, and a share of the depth.

    Attributes:
        kind: its format.
        parts: references to the stack of matrices.
        block: of rows of x.
        matrix: of the stack; below zero if nobody reads the result.
        first, width: columns of the planes, which are rows of the matrix.
        chunks: of 256 columns of the matrix.
        split, splits: which share of the depth, and of how many.
        interpreted: whether no GPU is there.
    """

    kind: BlockFormat
    parts: Mapping[str, Any]
    block: Array
    matrix: Array
    first: Array
    width: int
    chunks: int
    split: Array
    splits: int
    interpreted: bool

    def rows(self, name: str, first: Any, count: int | None = None) -> Any:
        """A reference to a row of a part, or some rows."""
        rows = first if count is None else pl.ds(first, count)
        return self.parts[name].at[jnp.maximum(self.matrix, 0), rows, pl.ds(self.first, self.width)]

    def share(self, steps: int) -> tuple[Array, Array]:
        """Which of all steps through the depth are this program's: none where nobody reads the result."""
        begin, end = (lax.div(share * steps, jnp.int32(self.splits)) for share in (self.split, self.split + 1))
        return begin, jnp.where(self.matrix < 0, begin, end)


def quotient_and_rest(index: Array, size: int) -> tuple[Array, Array]:
    """By a power of two, of what is not negative: division makes Mosaic GPU lower, and a GPU run, much more."""
    return index >> size.bit_length() - 1, index & size - 1
