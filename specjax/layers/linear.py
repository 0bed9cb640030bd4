"""Bias-free linear layers with the weight stored as files store it: [outputs, inputs], as floats or quantized."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.quant_matmul import QTensor, quant_matmul, quant_matmuls, take_rows
from specjax.layers.observed import Observed

Weight = Array | QTensor
"""A matrix [N, K] or a stack of them [E, N, K]; quantized ones come from files only. Statistics over activations pass
an `Observed` one wherever layers expect it."""

FEW_ROWS = 16
"""At most so many rows take the memory-bound form below; above it the matmul is bound by arithmetic."""


def weight_of(module: nn.Module, name: str, shape: tuple[int, ...]) -> Weight:
    """A matrix among the module's parameters; initialised as float32.

    Raises:
        ValueError: a quantized parameter has another shape.
    """
    given = module.get_variable("params", name) if module.has_variable("params", name) else None
    if not isinstance(given, (QTensor, Observed)):
        return module.param(name, nn.initializers.normal(0.02), shape, jnp.float32)
    if given.shape != shape:
        raise ValueError(f"parameter {name} of {type(module).__name__} is {given}; its shape must be {list(shape)}")
    return given


def matmul_transposed(
    x: Float[Array, "... K"], weight: Weight | Observed, dtype: DTypeLike | None = None
) -> Float[Array, "... N"]:
    """x @ weight.T for a matrix [N, K], accumulated in float32, rounded to `dtype` (default: that of x).

    Decoding multiplies each weight with a handful of rows and is bound by reading the weight once. XLA's CPU backend
    reaches that bound only with the weight as the left operand; the barrier keeps it from swapping the operands back.
    `benchmarks/few_row_matmul.py` measures both forms.
    """
    dtype = x.dtype if dtype is None else dtype
    if isinstance(weight, Observed):
        weight.multiplies(x)
        weight = weight.weight
    if isinstance(weight, QTensor):
        return quant_matmul(x, weight, dtype=dtype)
    rows = math.prod(x.shape[:-1])
    x_cast = x.astype(weight.dtype)
    if rows > FEW_ROWS:
        return jax.lax.dot_general(
            x_cast, weight, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        ).astype(dtype)

    def weight_left(x: Array, weight: Array) -> Array:
        # XLA's few-row product works in tiles of a power of two rows: eight cost less than five. For one row it has a
        # product of its own, which is slow for 16-bit weights.
        padded = 2 if rows == 1 and weight.dtype.itemsize < 4 else 1 << (rows - 1).bit_length()
        flat = jnp.pad(x.reshape(rows, x.shape[-1]), ((0, padded - rows), (0, 0)))
        out = jax.lax.dot_general(weight, flat, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return jax.lax.optimization_barrier(out)[:, :rows].T.reshape(*x.shape[:-1], weight.shape[0])

    def weight_right(x: Array, weight: Array) -> Array:
        return jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32)

    return jax.lax.platform_dependent(x_cast, weight, cpu=weight_left, default=weight_right).astype(dtype)


def matmul_blocks(x: Float[Array, "B M K"], stack: Weight, index: Int[Array, " B"]) -> Float[Array, "B M N"]:
    """x[b] @ stack[index[b]].T for each block b of rows, reading only matrices that are named.

    An index below zero stands for rows of zeros.
    """
    if isinstance(stack, QTensor):
        return quant_matmul(x, stack, index=index)

    def one_block(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        rows, number = block
        return None, matmul_transposed(rows, stack[number])

    return jax.lax.scan(one_block, None, (x, jnp.maximum(index, 0)))[1]


class Linear(nn.Module):
    """y = x W^T without bias; `weight` is [N, K].

    Attributes:
        features: N, the number of outputs.
        dtype: of the result; None keeps that of the input.
    """

    features: int
    dtype: DTypeLike | None = None

    @nn.compact
    def matrix(self, width: int) -> Weight | Observed:
        """The weight, for K = `width`."""
        return weight_of(self, "weight", (self.features, width))

    def __call__(self, x: Float[Array, "... K"]) -> Float[Array, "... N"]:
        return matmul_transposed(x, self.matrix(x.shape[-1]), self.dtype)


def apply_all(x: Float[Array, "... K"], *layers: Linear) -> list[Float[Array, "... N"]]:
    """layer(x) of each, those with quantized weights in one call."""
    weights = [layer.matrix(x.shape[-1]) for layer in layers]
    packed = [weight for weight in weights if isinstance(weight, QTensor)]
    together = iter(quant_matmuls(x, packed, dtype=jnp.float32))
    return [
        next(together).astype(layer.dtype or x.dtype)
        if isinstance(weight, QTensor)
        else matmul_transposed(x, weight, layer.dtype)
        for weight, layer in zip(weights, layers, strict=True)
    ]


class Embedding(nn.Module):
    """A table of V rows of width D that can also serve as output head.

    Attributes:
        vocab_size: V.
        width: D.
    """

    vocab_size: int
    width: int

    def setup(self) -> None:
        self.weight = weight_of(self, "weight", (self.vocab_size, self.width))

    def __call__(self, tokens: Array) -> Float[Array, "... D"]:
        """Rows of the table; [...] int32 -> [..., D]. Those of a quantized table are float32."""
        if isinstance(self.weight, QTensor):
            return take_rows(self.weight, tokens)
        return jnp.take(self.weight, tokens, axis=0, mode="clip")
