"""A weight that tells what it is multiplied with, for statistics over a model's activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.matmul import Blocks, QTensor, Weight, as_weight

Record = Callable[[str, Float[Array, "E D"], Int[Array, "E"]], None]
"""Called while a program is traced: with the parameter's path, the sums of the squares of each column of what it is
multiplied with, and how many rows were summed; for each of E experts, one if the weight is a matrix."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Observed(Weight):
    """A parameter that stands where a matrix or a stack of them stands.

    Attributes:
        weight: the matrix, or the stack.
        path: of the parameter.
        record: where the statistics go. It is called once per use, outside of loops, so that it may keep what it gets
            and let the traced program return it.
    """

    weight: Array | QTensor
    path: str = field(metadata={"static": True})
    record: Record = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight, as layers ask for it."""
        return self.weight.shape

    def matmul(
        self, x: Float[Array, "... K"], dtype: DTypeLike | None = None, blocks: Blocks | None = None
    ) -> Float[Array, "... N"]:
        """The product with the weight. The rows that it is multiplied with are recorded."""
        if blocks is None:
            rows = x.reshape(-1, x.shape[-1])
            self.record(self.path, _sum_of_squares(rows)[None], jnp.full(1, len(rows)))
        else:
            sums = jax.ops.segment_sum(jax.vmap(_sum_of_squares)(x), blocks.index, self.shape[0])
            self.record(self.path, sums, blocks.counts)
        return as_weight(self.weight).matmul(x, dtype, blocks)

    def take(self, rows: Int[Array, "..."]) -> Float[Array, "... K"]:
        """Rows of the weight; nothing is recorded."""
        return as_weight(self.weight).take(rows)


def _sum_of_squares(rows: Float[Array, "rows D"]) -> Float[Array, "D"]:
    """The sum of squares of each column, in float32."""
    return jnp.sum(jnp.square(rows.astype(jnp.float32)), axis=0)
