"""Bias-free linear layers with the weight stored as files store it: [outputs, inputs], as floats or quantized."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.matmul import Weight, as_weight, products
from specjax.mesh.columns import share, up_to
from specjax.mesh.shards import exact, gathered, part_index, parts, total


def weight_of(module: nn.Module, name: str, shape: tuple[int, ...]) -> Weight:
    """A matrix [N, K] or a stack of them [E, N, K] among the module's parameters; initialised as float32.

    Quantized ones come from files only.

    Raises:
        ValueError: the parameter has another shape.
    """
    if module.has_variable("params", name):
        weight = as_weight(module.get_variable("params", name))
    else:
        weight = as_weight(module.param(name, nn.initializers.normal(0.02), shape, jnp.float32))
    if weight.shape != shape:
        raise ValueError(f"parameter {name} of {type(module).__name__} is {weight}; its shape must be {list(shape)}")
    return weight


class Linear(nn.Module):
    """y = x W^T without bias; `weight` is [N, K].

    Attributes:
        features: N, the number of outputs.
        dtype: of the result; None keeps that of the input.
    """

    features: int
    dtype: DTypeLike | None = None

    @nn.compact
    def matrix(self, width: int) -> Weight:
        """The weight, for K = `width`."""
        return weight_of(self, "weight", (self.features, width))

    def __call__(self, x: Float[Array, "... K"]) -> Float[Array, "... N"]:
        return self.matrix(x.shape[-1]).matmul(x, self.dtype)


class GatheredLinear(Linear):
    """A linear layer from whole inputs to whole outputs, of which each part computes some. It lies whole on every
    device if its outputs do not divide.
    """

    @nn.compact
    def matrix(self, width: int) -> Weight:
        """The rows of the weight that this part has, for K = `width`."""
        return weight_of(self, "weight", (self._rows, width))

    @property
    def _divides(self) -> bool:
        return self.features % parts() == 0

    @property
    def _rows(self) -> int:
        return self.features // parts() if self._divides else self.features

    def __call__(self, x: Float[Array, "... K"]) -> Float[Array, "... N"]:
        out = super().__call__(x)
        return gathered(out) if self._divides else out


def apply_all(x: Float[Array, "... K"], *layers: Linear) -> list[Float[Array, "... N"]]:
    """layer(x) of each, those with weights of one kind in one call."""
    return products(x, [layer.matrix(x.shape[-1]) for layer in layers], [layer.dtype for layer in layers])


class SummedLinear(GatheredLinear):
    """A linear layer whose input is split: each part multiplies its own columns, and the products are added up.

    Where results must not depend on the number of parts, inputs are gathered, and each part computes some outputs.

    Attributes:
        groups: how many groups of inputs stand side by side, of each of which every part has a share.
    """

    groups: int = 1

    @nn.compact
    def matrix(self, width: int) -> Weight:
        """What this part has of the weight, for inputs of which it has `width`."""
        shape = (self._rows, width * parts()) if exact() else (self.features, width)
        return weight_of(self, "weight", shape)

    def __call__(self, x: Float[Array, "... k"]) -> Float[Array, "... N"]:
        if not exact():
            return total(self.matrix(x.shape[-1]).matmul(x, self.dtype))
        shares = gathered(x).reshape(*x.shape[:-1], parts(), self.groups, -1)
        whole = jnp.swapaxes(shares, -3, -2).reshape(*x.shape[:-1], -1)
        out = self.matrix(x.shape[-1]).matmul(whole, self.dtype)
        return gathered(out) if self._divides else out


class VocabularyLinear(Linear):
    """A linear layer to float32 logits of tokens, whose weight has a row for each. A part has those of its tokens."""

    @nn.compact
    def matrix(self, width: int) -> Weight:
        """The rows of the weight that this part has, for K = `width`."""
        return weight_of(self, "weight", (share(self.features), width))

    def __call__(self, x: Float[Array, "... K"]) -> Float[Array, "... n"]:
        return up_to(self.matrix(x.shape[-1]).matmul(x, jnp.float32), self.features)


class Embedding(nn.Module):
    """A table of V rows of width D that can also serve as output head. A part has the rows of its tokens.

    Attributes:
        vocab_size: V.
        width: D.
    """

    vocab_size: int
    width: int

    def setup(self) -> None:
        self.weight = weight_of(self, "weight", (share(self.vocab_size), self.width))

    def __call__(self, tokens: Array) -> Float[Array, "... D"]:
        """Rows of the table; [...] int32 -> [..., D]. Those of a quantized table are float32."""
        return total(self._own_rows(tokens))

    def _own_rows(self, tokens: Array) -> Float[Array, "... D"]:
        """The rows that this part has; zeros for the tokens of others."""
        if parts() == 1:
            return self.weight.take(tokens)
        own = tokens - part_index() * share(self.vocab_size)
        here = (own >= 0) & (own < share(self.vocab_size))
        return jnp.where(here[..., None], self.weight.take(own), 0)

    def scores(self, hidden: Float[Array, "B D"], tokens: Int[Array, "B M"]) -> Float[Array, "B M"]:
        """Float32 products of each hidden state with the rows of some tokens."""
        rows = self._own_rows(tokens)
        logits = jnp.einsum("bmd,bd->bm", rows, hidden.astype(rows.dtype), preferred_element_type=jnp.float32)
        return total(logits)

    def unembed(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits: the products with the rows of this part."""
        return up_to(self.weight.matmul(hidden, jnp.float32), self.vocab_size)
