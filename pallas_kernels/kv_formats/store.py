"""Vectors in a format, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pallas_kernels.kv_formats.format import KVFormat, Parts
from pallas_kernels.kv_formats.table import format_named


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVStore:
    """Vectors [..., N], where all but the last axis can be indexed.

    Attributes:
        parts: see `pallas_kernels.kv_formats.format.Parts`.
        format: name of a `KVFormat`.
        width: N.
    """

    parts: Parts
    format: str = field(metadata={"static": True})
    width: int = field(metadata={"static": True})

    @classmethod
    def zeros(cls, shape: tuple[int, ...], format: str) -> KVStore:
        """Vectors of zeros; the last entry of `shape` is N. ValueError for an unknown format."""
        *lead, width = shape
        one = jax.eval_shape(format_named(format).encode, jax.ShapeDtypeStruct((width,), jnp.float32))
        return cls({name: jnp.zeros((*lead, *part.shape), part.dtype) for name, part in one.items()}, format, width)

    @classmethod
    def of(cls, x: Float[Array, "... N"], format: str) -> KVStore:
        """The vectors of an array. ValueError for an unknown format."""
        return cls(format_named(format).encode(x), format, x.shape[-1])

    @property
    def kind(self) -> KVFormat:
        """The format that says how to read the parts."""
        return format_named(self.format)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values, [..., N], whatever the format stores."""
        return (*self.parts["codes"].shape[:-1], self.width)

    def rotated(self) -> Float[Array, "... stored"]:
        """All vectors as they are kept, see `KVFormat`, in float32."""
        return self.kind.decode(self.parts)

    def values(self) -> Float[Array, "... N"]:
        """Decode all vectors to float32."""
        return self.kind.unrotate(self.rotated(), self.width)

    def set(self, index: Any, x: Float[Array, "... N"]) -> KVStore:
        """Encode vectors and write them at an index as that of `Array.at`; what is out of range is dropped."""
        new = self.kind.encode(x)
        return replace(
            self, parts={name: part.at[index].set(new[name], mode="drop") for name, part in self.parts.items()}
        )

    def map(self, function: Callable[..., Array], *others: KVStore) -> KVStore:
        """Move entries: `function` is applied to each part, and to the same parts of other stores of the format."""
        return replace(
            self,
            parts={name: function(part, *(other.parts[name] for other in others)) for name, part in self.parts.items()},
        )
