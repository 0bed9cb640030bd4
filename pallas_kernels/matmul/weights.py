"""What a matrix answers, whatever it is made of: whoever multiplies does not ask what that is.

A parameter is an array, a `QTensor`, or a value of a class of its own; `weight_of` gives what answers for it. Another
kind of matrix is another subclass of `Weight`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels.matmul.api import quant_matmul
from pallas_kernels.matmul.floats import float_matmul
from pallas_kernels.matmul.fused import quant_matmuls, quant_swiglu
from pallas_kernels.matmul.layouts import packed_joined, packed_submatrix, take_rows
from pallas_kernels.matmul.qtensor import QTensor
from pallas_kernels.matmul.swiglu import swiglu

Activation = Callable[[Array, Array], Array]
"""Makes one array from gate and up, which have equal shapes."""


@dataclass(frozen=True)
class Blocks:
    """Which matrices of a stack [E, N, K] the blocks of rows [B, M, K] are multiplied with.

    Attributes:
        index: of each block; below zero for blocks of zeros, which nobody reads.
        counts: rows that are sent to each matrix; the others in its blocks are zeros.
    """

    index: Int[Array, " B"]
    counts: Int[Array, " E"]


class Weight(ABC):
    """A matrix [N, K], or a stack of them [E, N, K]."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """[..., N, K], in values."""

    @abstractmethod
    def matmul(
        self, x: Float[Array, "... K"], dtype: DTypeLike | None = None, blocks: Blocks | None = None
    ) -> Float[Array, "... N"]:
        """x @ weight.T, accumulated in float32, in `dtype` (default: that of x); with blocks, of a stack."""

    @abstractmethod
    def take(self, rows: Int[Array, "..."]) -> Float[Array, "... K"]:
        """Some rows of a matrix; numbers out of range are clipped."""

    @classmethod
    def matmuls(
        cls, x: Float[Array, "... K"], weights: Sequence[Any], dtypes: Sequence[DTypeLike | None]
    ) -> list[Float[Array, "... N"]]:
        """The products with several matrices of this class."""
        return [weight.matmul(x, dtype) for weight, dtype in zip(weights, dtypes, strict=True)]

    @classmethod
    def swiglu(cls, x: Array, gate: Any, up: Any, down: Any, limit: float, blocks: Blocks | None) -> Array:
        """See `swiglu`; the three are of this class."""
        return gated(x, gate, up, down, lambda gate, up: swiglu(gate, up, limit), blocks)


@dataclass(frozen=True)
class FloatWeight(Weight):
    """A matrix or a stack of them as a plain array of floats."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def matmul(self, x: Array, dtype: DTypeLike | None = None, blocks: Blocks | None = None) -> Array:
        return float_matmul(x, self.array, dtype=dtype, index=None if blocks is None else blocks.index)

    def take(self, rows: Array) -> Array:
        """Some rows of the matrix, in the dtype of the array; see `Weight`."""
        return jnp.take(self.array, rows, axis=0, mode="clip")

    def __repr__(self) -> str:
        return f"{self.array.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class PackedWeight(Weight):
    """A matrix that stays quantized. Products with several are one call where kernels take several."""

    tensor: QTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def matmul(self, x: Array, dtype: DTypeLike | None = None, blocks: Blocks | None = None) -> Array:
        return quant_matmul(x, self.tensor, dtype=dtype, index=None if blocks is None else blocks.index)

    def take(self, rows: Array) -> Array:
        """Some rows of the matrix, decoded to float32; see `Weight`."""
        return take_rows(self.tensor, rows)

    @classmethod
    def matmuls(cls, x: Array, weights: Sequence[Any], dtypes: Sequence[DTypeLike | None]) -> list[Array]:
        outs = quant_matmuls(x, [weight.tensor for weight in weights], dtype=jnp.float32)
        return [out.astype(dtype or x.dtype) for out, dtype in zip(outs, dtypes, strict=True)]

    @classmethod
    def swiglu(cls, x: Array, gate: Any, up: Any, down: Any, limit: float, blocks: Blocks | None) -> Array:
        index = None if blocks is None else blocks.index
        return quant_swiglu(x, gate.tensor, up.tensor, down.tensor, limit=limit, index=index)

    def __repr__(self) -> str:
        return repr(self.tensor)


@singledispatch
def as_weight(leaf: Any) -> Weight:
    """What answers for a parameter: an array, a `QTensor` or a `Weight`."""
    return FloatWeight(leaf)


as_weight.register(QTensor, PackedWeight)
as_weight.register(Weight, lambda weight: weight)


@singledispatch
def submatrix(leaf: Any, rows: Int[Array, " M"]) -> Any:
    """A parameter [M, K] of some rows of a matrix [N, K], in the form that it has: an array or a `QTensor`."""
    return jnp.take(leaf, rows, axis=0, mode="clip")


submatrix.register(QTensor, packed_submatrix)


@singledispatch
def joined(first: Any, *others: Any) -> Any:
    """Parameters of one kind and width one below the other. Each has a multiple of `ROWS_THAT_JOIN` rows."""
    return jnp.concatenate([first, *others])


joined.register(QTensor, packed_joined)


def leaves(params: Any) -> list[Any]:
    """The arrays of a tree of parameters, and matrices that are made of several arrays as one: all have `size`."""
    plain = as_weight.dispatch(object)
    return jax.tree.leaves(params, is_leaf=lambda leaf: as_weight.dispatch(type(leaf)) is not plain)


def products(
    x: Float[Array, "... K"], weights: Sequence[Weight], dtypes: Sequence[DTypeLike | None]
) -> list[Float[Array, "... N"]]:
    """x @ weight.T for each matrix, in its dtype (None: that of x), those of one kind together."""
    outs: dict[int, Array] = {}
    for kind in dict.fromkeys(type(weight) for weight in weights):
        own = [i for i, weight in enumerate(weights) if type(weight) is kind]
        given = [weights[i] for i in own], [dtypes[i] for i in own]
        outs |= zip(own, kind.matmuls(x, *given), strict=True)
    return [outs[i] for i in range(len(weights))]


def swiglu_products(
    x: Float[Array, "... K"], gate: Weight, up: Weight, down: Weight, limit: float = 0.0, blocks: Blocks | None = None
) -> Float[Array, "... N"]:
    """down(swiglu(gate(x), up(x))), in one call where the three are of one kind that has one."""
    kinds = {type(gate), type(up), type(down)}
    kind = kinds.pop() if len(kinds) == 1 else Weight
    return kind.swiglu(x, gate, up, down, limit, blocks)


def gated(
    x: Float[Array, "... K"],
    gate: Weight,
    up: Weight,
    down: Weight,
    activation: Activation,
    blocks: Blocks | None = None,
) -> Float[Array, "... N"]:
    """down(activation(gate(x), up(x))), one product after the other."""
    return down.matmul(activation(gate.matmul(x, blocks=blocks), up.matmul(x, blocks=blocks)), blocks=blocks)
