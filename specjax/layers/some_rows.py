"""A table that is looked up whole and multiplied with in part."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.matmul import Blocks, QTensor, Weight, as_weight


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SomeRows(Weight):
    """A parameter that stands where a matrix of V rows stands, of which products have only M columns.

    Attributes:
        whole: [V, K], for looking up rows: it may be an embedding table at the same time.
        rows: [M, K], what is multiplied with.
    """

    whole: Array | QTensor
    rows: Array | QTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole, as layers ask for it."""
        return self.whole.shape

    def matmul(
        self, x: Float[Array, "... K"], dtype: DTypeLike | None = None, blocks: Blocks | None = None
    ) -> Float[Array, "... M"]:
        """The product with the M rows."""
        return as_weight(self.rows).matmul(x, dtype, blocks)

    def take(self, rows: Int[Array, "..."]) -> Float[Array, "... K"]:
        """Rows of the whole; see `Weight`."""
        return as_weight(self.whole).take(rows)
