"""Block formats of quantized matrices: how many bytes hold how many values, and what the bytes mean.

A row of a matrix is a sequence of blocks. A format is described once, by where its codes and scales lie in the bytes of
a block and by what they mean. All that reads or writes blocks goes by the description: `decode` and `assemble`, the
layouts "panels16" and "planes", the native kernels (`pallas_kernels.native_tables`) and the encoders of `checkpoints`.
A value is what its code stands for, in the arithmetic of one of these rules:

| scales | a block has | value of a code c |
| --- | --- | --- |
| one | a float16 d | d * c |
| affine | float16 d, m | d * c + m |
| halves | float16 d, e | d * c for the first 16, e * c for the others; then rotated by `tq_rotation` |
| super_affine | float16 d, m; scales and minima in bytes, for 32 values each | d * scale * c - m * minimum |
| super_signed | float16 d; signed scales for 32 values each | d * scale * c |
| super_signed_halves | float16 d; signed scales for 16 values each | d * scale * c |

Sources: ggml `src/ggml-common.h` (layouts, the IQ4 codebook) and `src/ggml-quants.c` (`dequantize_row_*`); the TQ
formats as in the public TurboQuant forks of llama.cpp. Scales are little-endian float16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Shaped, UInt8, UInt16

from pallas_kernels.centroids import LLOYD_MAX, symmetric
from pallas_kernels.hadamard.reference import matrix
from pallas_kernels.matmul.bits import Bits, Integers

IQ4_CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TQ3_CENTROIDS = (-1.996684, -1.291398, -0.740341, -0.247508, 0.230106, 0.725222, 1.277503, 1.988943)
TQ4_CENTROIDS = symmetric(LLOYD_MAX[4])
TQ_SIGNS = tuple(1 if sign == "+" else -1 for sign in "+-+-++-+--+-++-+--+-+--+-++-+--+")
"""The signs of the rotation of a block of 32 in the TQ formats."""


Scales = Literal["one", "affine", "halves", "super_affine", "super_signed", "super_signed_halves"]


@dataclass(frozen=True)
class BlockFormat:
    """A block format.

    Attributes:
        name: as in GGUF.
        num_bytes: of a block.
        codes: of its values, without what the scales make of them.
        scales: see the module.
        table: what codes stand for, where that is not the code itself less the offset.
        first_half: the byte at which the float16 numbers begin.
        byte_scales: the scales, and minima if there are any, where they are bytes or fewer bits.
    """

    name: str
    num_bytes: int
    codes: Integers
    scales: Scales
    table: tuple[float, ...] | None = None
    first_half: int = 0
    byte_scales: tuple[Integers, ...] = ()

    @property
    def values(self) -> int:
        """How many values a block has."""
        return self.codes.count

    @property
    def planes(self) -> tuple[int, ...]:
        """Widths of the planes of bits in which the layouts keep codes, low bits first: powers of two."""
        return tuple(width for width in (8, 4, 2, 1) if self.codes.width & width)

    @property
    def affine(self) -> bool:
        """Whether something is added to scaled codes."""
        return self.scales in ("affine", "super_affine")

    @property
    def rotated(self) -> bool:
        """Whether scaled codes are values that `tq_rotation` has to turn; the codes stand for any floats."""
        return self.scales == "halves"

    @property
    def halves(self) -> int:
        """How many float16 numbers a block has."""
        return 2 if self.affine or self.rotated else 1

    @property
    def per_scale(self) -> int:
        """How many values share a scale."""
        return 16 if self.scales in ("halves", "super_signed_halves") else 32

    def half_bits(self, block: UInt8[Array, "... bytes"]) -> UInt16[Array, "... halves"]:
        """The bits of the float16 numbers of blocks."""
        pairs = block[..., self.first_half : self.first_half + 2 * self.halves]
        return lax.bitcast_convert_type(pairs.reshape(*block.shape[:-1], self.halves, 2), jnp.uint16)

    def decode(self, block: UInt8[Array, "... bytes"]) -> Float[Array, "... values"]:
        """The values of blocks, in float32."""
        halves = lax.bitcast_convert_type(self.half_bits(block), jnp.float16).astype(jnp.float32)
        return self.scaled(self.codes.read(block), halves, [scales.values(block) for scales in self.byte_scales])

    def assemble(
        self,
        codes: UInt8[np.ndarray, "... values"],
        halves: Float[np.ndarray, "... halves"],
        byte_scales: Sequence[Shaped[np.ndarray, "... scales"]] = (),
    ) -> UInt8[np.ndarray, "... bytes"]:
        """The bytes of blocks; undoes what `decode` reads. Byte scales are given less their offsets."""
        block = np.zeros((*codes.shape[:-1], self.num_bytes), np.uint8)
        self.codes.write(codes, block)
        stored = np.ascontiguousarray(halves, "<f2").view(np.uint8)
        block[..., self.first_half : self.first_half + 2 * self.halves] = stored
        for scales, values in zip(self.byte_scales, byte_scales, strict=True):
            scales.write(np.asarray(values, np.int32) + scales.offset, block)
        return block

    def scaled(
        self,
        codes: UInt8[Array, "... values"],
        halves: Float[Array, "... halves"],
        byte_scales: Sequence[Shaped[Array, "... scales"]],
    ) -> Float[Array, "... values"]:
        """The values of the codes of blocks, in float32."""
        if self.table is None:
            values = codes.astype(jnp.float32) - self.codes.offset
        else:
            values = jnp.take(jnp.array(self.table, jnp.float32), codes.astype(jnp.int32), axis=0, mode="clip")
        groups = values.reshape(*halves.shape[:-1], -1, self.per_scale)
        if self.rotated:
            return turned((groups * halves[..., None]).reshape(values.shape), tq_rotation())
        factors = [halves[..., i : i + 1] for i in range(self.halves)]
        if byte_scales:
            factors = [half * scale.astype(jnp.float32) for half, scale in zip(factors, byte_scales, strict=True)]
        groups = factors[0][..., None] * groups
        if self.affine:  # minima in bytes are taken away, float16 ones are added
            bias = factors[1][..., None]
            groups = groups - bias if byte_scales else groups + bias
        return groups.reshape(values.shape)

    @property
    def bits_per_value(self) -> float:
        """Bits that a value takes in the file, its share of the scales included."""
        return 8 * self.num_bytes / self.values

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` values.

        Raises:
            ValueError: the width is no multiple of the block's.
        """
        if width % self.values:
            raise ValueError(f"{self.name} comes in blocks of {self.values} values; a row of {width} does not divide")
        return width // self.values * self.num_bytes


def tq_rotation() -> np.ndarray:
    """[32, 32], orthogonal: `rotated @ tq_rotation()` are the values of a block of a TQ format."""
    return matrix(32) * np.array(TQ_SIGNS, np.float32) / np.float32(np.sqrt(32))


def turned(x: Float[Array, "... K"], rotation: np.ndarray) -> Float[Array, "... K"]:
    """Each block of 32 columns times the rotation, in float32."""
    blocks = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, len(rotation))
    return jnp.matmul(blocks, jnp.asarray(rotation), precision="highest").reshape(x.shape)


_K_SCALES = Integers(8, (Bits(4, 6, 4, count=4), Bits(12, 4, 4, first=4), Bits(4, 2, 4, to=4, first=4, shift=6)))
_K_MINIMA = Integers(
    8, (Bits(8, 6, 4, count=4), Bits(12, 4, 4, first=4, shift=4), Bits(8, 2, 4, to=4, first=4, shift=6))
)
_Q6_SCALES = Integers(16, (Bits(192, 8, 16, signed=True),), offset=128)
_IQ4_SCALES = Integers(8, (Bits(4, 4), Bits(2, 2, to=4)), offset=32)

FORMATS = {
    format.name: format
    for format in (
        BlockFormat("Q8_0", 34, Integers(32, (Bits(2, 8, 32, signed=True),), offset=128), "one"),
        BlockFormat("Q4_0", 18, Integers(32, (Bits(2, 4, 16),), offset=8), "one"),
        BlockFormat("Q4_1", 20, Integers(32, (Bits(4, 4, 16),)), "affine"),
        BlockFormat("Q5_0", 22, Integers(32, (Bits(6, 4, 16), Bits(2, 1, to=4)), offset=16), "one"),
        BlockFormat("Q5_1", 24, Integers(32, (Bits(8, 4, 16), Bits(4, 1, to=4))), "affine"),
        BlockFormat("Q4_K", 144, Integers(256, (Bits(16, 4, 32),)), "super_affine", byte_scales=(_K_SCALES, _K_MINIMA)),
        BlockFormat(
            *("Q5_K", 176, Integers(256, (Bits(48, 4, 32), Bits(16, 1, 32, to=4))), "super_affine"),
            byte_scales=(_K_SCALES, _K_MINIMA),
        ),
        BlockFormat(
            *("Q6_K", 210, Integers(256, (Bits(0, 4, 64), Bits(128, 2, 32, to=4)), offset=32), "super_signed_halves"),
            first_half=208,
            byte_scales=(_Q6_SCALES,),
        ),
        BlockFormat("IQ4_NL", 18, Integers(32, (Bits(2, 4, 16),)), "one", IQ4_CODEBOOK),
        BlockFormat(
            "IQ4_XS", 136, Integers(256, (Bits(8, 4, 16),)), "super_signed", IQ4_CODEBOOK, byte_scales=(_IQ4_SCALES,)
        ),
        BlockFormat("TQ3_1S", 16, Integers(32, (Bits(4, 3, word=3),)), "halves", TQ3_CENTROIDS),
        BlockFormat("TQ4_1S", 20, Integers(32, (Bits(4, 4),)), "halves", TQ4_CENTROIDS),
    )
}
"""Formats that are computed with directly, by name."""
