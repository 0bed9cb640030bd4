"""Small arrays as one array of each dtype. A loop writes it with one operation, instead of one for each small array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


@dataclass(frozen=True)
class Packing:
    """How the leaves of a tree lie in one array for each dtype, side by side. All leaves are [B, ...].

    Attributes:
        shapes: the tree, with the shape and dtype of each leaf.
    """

    shapes: Any

    def packed(self, tree: Any) -> dict[str, Shaped[Array, "B _"]]:
        """The leaves by the names of their dtypes."""
        leaves: dict[str, list[Array]] = {}
        for leaf in jax.tree.leaves(tree):
            leaves.setdefault(leaf.dtype.name, []).append(leaf.reshape(len(leaf), -1))
        return {name: jnp.concatenate(each, axis=1) for name, each in leaves.items()}

    def room(self, count: int) -> dict[str, Shaped[Array, "N B _"]]:
        """Zeros, of the shape of so many trees when they are packed and stacked."""
        packed = jax.eval_shape(self.packed, self.shapes)
        return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), packed)

    def unpacked(self, stacked: dict[str, Shaped[Array, "N B _"]]) -> Any:
        """The tree, whose leaves are [N, B, ...], from what N trees were packed into."""
        begin = dict.fromkeys(stacked, 0)

        def taken(leaf: jax.ShapeDtypeStruct) -> Array:
            array = stacked[name := leaf.dtype.name]
            start, width = begin[name], math.prod(leaf.shape[1:])
            begin[name] += width
            return array[..., start : start + width].reshape(*array.shape[:2], *leaf.shape[1:])

        return jax.tree.map(taken, self.shapes)
