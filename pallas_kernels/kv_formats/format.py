"""What a format is, and the three that keep floats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float

from pallas_kernels.elementwise import float_of_half

Parts = dict[str, Array]
"""The arrays of some vectors: "codes" [..., *], and "scales" [..., groups] float16 where groups of values have one.

All bits zero stand for a vector of zeros."""


@dataclass(frozen=True)
class KVFormat(ABC):
    """A way to keep vectors [..., N].

    What is kept may be a rotation of the vector, padded with zeros. Scores of rotated queries with rotated keys are
    those of the originals, and so are weighted sums of rotated values, once they are rotated back: attention rotates
    its queries and its output and no entry of a cache.

    Attributes:
        name: as users write it.
        bits: of a value, without its share of a scale.
    """

    name: str
    bits: int

    def group(self, width: int) -> int:
        """How many values share a scale in vectors of a width; 0 where there are no scales."""
        return 0

    @property
    def quantized(self) -> bool:
        """Whether entries are codes instead of floats."""
        return self.group(1) > 0

    def stored_width(self, width: int) -> int:
        """Values kept of a vector of N: whole groups."""
        group = self.group(width) or 1
        return -(-width // group) * group

    def num_bytes(self, width: int) -> int:
        """Bytes kept of a vector of N."""
        stored, group = self.stored_width(width), self.group(width)
        return stored * self.bits // 8 + (2 * stored // group if group else 0)

    def bits_per_value(self, width: int) -> float:
        """Bits kept per value of a vector of N, scales and padding included."""
        return 8 * self.num_bytes(width) / width

    def rotate(self, x: Float[Array, "... N"]) -> Float[Array, "... stored"]:
        """Vectors as they are before they are coded."""
        return pad(x, self.stored_width(x.shape[-1]))

    def unrotate(self, x: Float[Array, "... stored"], width: int) -> Float[Array, "... N"]:
        """Undo `rotate` on values that were decoded."""
        return x[..., :width]

    @abstractmethod
    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """What is kept of vectors."""

    @abstractmethod
    def decode(self, parts: Parts) -> Float[Array, "... stored"]:
        """Rotated vectors, float32, of what was kept."""

    @abstractmethod
    def unscaled(self, codes: Array, group: int) -> Float[Array, "..."]:
        """What single codes stand for before they are scaled, in float32, as kernels compute it.

        Args:
            codes: of f32 the floats; of other formats int32, codes or the bits of floats. Signed bytes may be unsigned.
            group: how many values share a scale.
        """


def pad(x: Float[Array, "... N"], width: int) -> Float[Array, "... width"]:
    """Zeros after the last value."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]) if width > x.shape[-1] else x


def to_finite(x: Float[Array, "..."], dtype: DTypeLike) -> Float[Array, "..."]:
    """Round to the nearest finite number of a type; larger values become the largest one, and NaN stays."""
    limit = jnp.float32(jnp.finfo(dtype).max)
    return jnp.clip(x, -limit, limit).astype(dtype)


def _seen_as(x: Array, dtype: DTypeLike) -> Array:
    """The same bits as another type. Training differentiates through float32, and no bits have a derivative."""
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, jnp.dtype(dtype))


@dataclass(frozen=True)
class FloatFormat(KVFormat):
    """Values one by one in a float type.

    Attributes:
        dtype: of the values.
        storage: of the array: an integer type of the same size where XLA's CPU backend would convert and copy a whole
            cache of `dtype` to write one row of it.
    """

    dtype: DTypeLike
    storage: DTypeLike

    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """Round the values to the format's type.

        Where that has a smaller range than float32, none becomes infinite. The value of a draft would make NaN of the
        rows before it, in which its weight is zero.
        """
        small = jnp.finfo(self.dtype).maxexp < jnp.finfo(jnp.float32).maxexp
        rounded = to_finite(x, self.dtype) if small else x.astype(self.dtype)
        return {"codes": _seen_as(rounded, self.storage)}

    def floats(self, parts: Parts) -> Float[Array, "... N"]:
        """The values in their type."""
        return _seen_as(parts["codes"], self.dtype)

    def decode(self, parts: Parts) -> Float[Array, "... N"]:
        """Convert the stored values to float32."""
        return self.floats(parts).astype(jnp.float32)

    def unscaled(self, codes: Array, group: int) -> Float[Array, "..."]:
        if self.bits == 32:
            return codes
        return lax.bitcast_convert_type(codes << 16, jnp.float32) if self is BF16 else float_of_half(codes)


F32 = FloatFormat("f32", 32, jnp.float32, jnp.float32)
F16 = FloatFormat("f16", 16, jnp.float16, jnp.float16)
BF16 = FloatFormat("bf16", 16, jnp.bfloat16, jnp.uint16)
