"""What a format is, and the three that keep floats."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float

Parts = dict[str, Array]
"""The arrays of some vectors: "codes" [..., *], and "scales" [..., groups] float16 where groups of values have one.

All bits zero stand for a vector of zeros."""


@dataclass(frozen=True)
class KVFormat:
    """A way to keep vectors [..., N].

    What is kept may be a rotation of the vector, padded with zeros. Scores of rotated queries with rotated keys are
    those of the originals, and so are weighted sums of rotated values, once they are rotated back: attention rotates
    its queries and its output and no entry of a cache.

    Attributes:
        name: as users write it.
    """

    name: str

    @property
    def quantized(self) -> bool:
        """Whether entries are codes instead of floats."""
        return True

    def stored_width(self, width: int) -> int:
        """Values kept of a vector of N."""
        return width

    def num_bytes(self, width: int) -> int:
        """Bytes kept of a vector of N."""
        raise TypeError(f"{type(self).__name__} does not say what it takes")

    def bits_per_value(self, width: int) -> float:
        """Bits kept per value of a vector of N, scales and padding included."""
        return 8 * self.num_bytes(width) / width

    def rotate(self, x: Float[Array, "... N"]) -> Float[Array, "... stored"]:
        """Vectors as they are before they are coded."""
        return pad(x, self.stored_width(x.shape[-1]))

    def unrotate(self, x: Float[Array, "... stored"], width: int) -> Float[Array, "... N"]:
        """Undo `rotate` on values that were decoded."""
        return x[..., :width]

    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """What is kept of vectors."""
        raise TypeError(f"{type(self).__name__} does not say how it encodes")

    def decode(self, parts: Parts) -> Float[Array, "... stored"]:
        """Rotated vectors, float32, of what was kept."""
        raise TypeError(f"{type(self).__name__} does not say how it decodes")


def pad(x: Float[Array, "... N"], width: int) -> Float[Array, "... width"]:
    """Zeros after the last value."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]) if width > x.shape[-1] else x


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

    @property
    def quantized(self) -> bool:
        return False

    def num_bytes(self, width: int) -> int:
        return jnp.dtype(self.dtype).itemsize * width

    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """Round the values to the format's floating-point type."""
        return {"codes": lax.bitcast_convert_type(x.astype(self.dtype), jnp.dtype(self.storage))}

    def floats(self, parts: Parts) -> Float[Array, "... N"]:
        """The values in their type."""
        return lax.bitcast_convert_type(parts["codes"], jnp.dtype(self.dtype))

    def decode(self, parts: Parts) -> Float[Array, "... N"]:
        """Convert the stored values to float32."""
        return self.floats(parts).astype(jnp.float32)


F32 = FloatFormat("f32", jnp.float32, jnp.float32)
F16 = FloatFormat("f16", jnp.float16, jnp.float16)
BF16 = FloatFormat("bf16", jnp.bfloat16, jnp.uint16)
