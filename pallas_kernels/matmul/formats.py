"""Block formats of quantized matrices: how many bytes hold how many values, and what the bytes mean.

A row of a matrix is a sequence of blocks. A format is described once, by where its codes and scales lie in the bytes of
a block and by what they mean; `decode` and the layouts "panels16" and "planes" come from that. A value is what its code
stands for, in the arithmetic of one of these rules:

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int8, Shaped, UInt8

IQ4_CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TQ3_CENTROIDS = (-1.996684, -1.291398, -0.740341, -0.247508, 0.230106, 0.725222, 1.277503, 1.988943)
_TQ4_POSITIVE = (0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590)
TQ4_CENTROIDS = (*(-c for c in reversed(_TQ4_POSITIVE)), *_TQ4_POSITIVE)
TQ_SIGNS = tuple(1 if sign == "+" else -1 for sign in "+-+-++-+--+-++-+--+-+--+-++-+--+")
"""The signs of the rotation of a block of 32 in the TQ formats."""


Scales = Literal["one", "affine", "halves", "super_affine", "super_signed", "super_signed_halves"]


@dataclass(frozen=True)
class BlockFormat:
    """A block format.

    Attributes:
        name: as in GGUF.
        values, num_bytes: of a block.
        codes: the integers of a block, one byte each, without what its scales make of them.
        planes: widths of the planes of bits in which the layouts keep codes, low bits first.
        scales: see the module.
        offset: what is subtracted from a code.
        table: what codes stand for, where that is not the code itself.
        first_half: the byte at which the float16 numbers begin.
        byte_scales: the scales of a block, and minima if there are any, where they are bytes or fewer bits.
    """

    name: str
    values: int
    num_bytes: int
    codes: Callable[[UInt8[Array, "... bytes"]], UInt8[Array, "... values"]]
    planes: tuple[int, ...]
    scales: Scales
    offset: int = 0
    table: tuple[float, ...] | None = None
    first_half: int = 0
    byte_scales: Callable[[UInt8[Array, "... bytes"]], tuple[Array, ...]] | None = None

    @property
    def affine(self) -> bool:
        """Whether something is added to scaled codes."""
        return self.scales in ("affine", "super_affine")

    @property
    def halves(self) -> int:
        """How many float16 numbers a block has."""
        return 2 if self.affine or self.scales == "halves" else 1

    @property
    def per_scale(self) -> int:
        """How many values share a scale."""
        return 16 if self.scales in ("halves", "super_signed_halves") else 32

    def decode(self, block: UInt8[Array, "... bytes"]) -> Float[Array, "... values"]:
        """The values of blocks, in float32."""
        scales = () if self.byte_scales is None else self.byte_scales(block)
        halves = [_half(block, self.first_half + 2 * i) for i in range(self.halves)]
        return self.scaled(self.codes(block), jnp.concatenate(halves, axis=-1), scales)

    def scaled(
        self,
        codes: UInt8[Array, "... values"],
        halves: Float[Array, "... halves"],
        byte_scales: Sequence[Shaped[Array, "... scales"]],
    ) -> Float[Array, "... values"]:
        """The values of the codes of blocks, in float32."""
        if self.table is None:
            values = _float(codes) - self.offset
        else:
            values = jnp.take(jnp.array(self.table, jnp.float32), codes.astype(jnp.int32), axis=0, mode="clip")
        groups = values.reshape(*halves.shape[:-1], -1, self.per_scale)
        if self.scales == "halves":
            return jnp.matmul(
                (groups * halves[..., None]).reshape(values.shape), jnp.asarray(tq_rotation()), precision="highest"
            )
        factors = [halves[..., i : i + 1] for i in range(self.halves)]
        if byte_scales:
            factors = [half * _float(scale) for half, scale in zip(factors, byte_scales, strict=True)]
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


def hadamard(order: int) -> np.ndarray:
    """The Hadamard matrix in natural (Sylvester) order, entries +-1; `order` is a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def tq_rotation() -> np.ndarray:
    """[32, 32], orthogonal: `rotated @ tq_rotation()` are the values of a block of a TQ format."""
    return hadamard(32) * np.array(TQ_SIGNS, np.float32) / np.float32(np.sqrt(32))


def _half(block: Array, at: int) -> Array:
    """The float16 at byte `at`, as float32 with a last axis of length 1."""
    return lax.bitcast_convert_type(block[..., at : at + 2], jnp.float16).astype(jnp.float32)[..., None]


def _halves(packed: Array) -> Array:
    """Low nibbles, then high nibbles."""
    return jnp.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: Array, width: int) -> Array:
    """Fields of `width` bits, low bits of each byte first: [..., n] -> [..., n * 8 / width]."""
    shifts = jnp.arange(0, 8, width, dtype=jnp.uint8)
    fields = (packed[..., None] >> shifts) & ((1 << width) - 1)
    return fields.reshape(*packed.shape[:-1], -1)


def _planes(packed: Array, width: int, count: int) -> Array:
    """`count` planes of fields of `width` bits, low bits first: [..., n] -> [..., count, n]."""
    shifts = jnp.arange(0, width * count, width, dtype=jnp.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & ((1 << width) - 1)


def _float(codes: Array) -> Array:
    return codes.astype(jnp.float32)


def _q8_0_codes(block: Array) -> Array:
    return block[..., 2:] ^ 128


def _q4_0_codes(block: Array) -> Array:
    return _halves(block[..., 2:])


def _q4_1_codes(block: Array) -> Array:
    return _halves(block[..., 4:])


def _q5_0_codes(block: Array) -> Array:
    return _halves(block[..., 6:]) | _bits(block[..., 2:6], 1) << 4


def _q5_1_codes(block: Array) -> Array:
    return _halves(block[..., 8:]) | _bits(block[..., 4:8], 1) << 4


def _k_scales(block: UInt8[Array, "... bytes"]) -> tuple[UInt8[Array, "... 8"], UInt8[Array, "... 8"]]:
    """The eight 6-bit scales and the eight 6-bit minima of a block of Q4_K or Q5_K."""
    first, second, third = block[..., 4:8], block[..., 8:12], block[..., 12:16]
    scales = jnp.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=-1)
    minima = jnp.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=-1)
    return scales, minima


def _q4_k_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    return _planes(block[..., 16:].reshape(*lead, 4, 32), 4, 2).reshape(*lead, 256)


def _q5_k_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    low = _planes(block[..., 48:].reshape(*lead, 4, 32), 4, 2).reshape(*lead, 8, 32)
    return (low | _planes(block[..., 16:48], 1, 8) << 4).reshape(*lead, 256)


def _q6_k_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    low = _planes(block[..., :128].reshape(*lead, 2, 64), 4, 2).reshape(*lead, 2, 128)
    high = _planes(block[..., 128:192].reshape(*lead, 2, 32), 2, 4).reshape(*lead, 2, 128)
    return (low | high << 4).reshape(*lead, 256)


def _q6_k_scales(block: UInt8[Array, "... bytes"]) -> tuple[Int8[Array, "... 16"]]:
    return (lax.bitcast_convert_type(block[..., 192:208], jnp.int8),)


def _iq4_xs_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    return _halves(block[..., 8:].reshape(*lead, 8, 16)).reshape(*lead, 256)


def _iq4_xs_scales(block: UInt8[Array, "... bytes"]) -> tuple[Int8[Array, "... 8"]]:
    return ((_bits(block[..., 4:8], 4) | _bits(block[..., 2:4], 2) << 4).astype(jnp.int8) - 32,)


def _tq3_1s_codes(block: Array) -> Array:
    bits = _bits(block[..., 4:], 1).reshape(*block.shape[:-1], 32, 3)
    return bits[..., 0] | bits[..., 1] << 1 | bits[..., 2] << 2


def _tq4_1s_codes(block: Array) -> Array:
    return _bits(block[..., 4:], 4)


FORMATS = {
    format.name: format
    for format in (
        BlockFormat("Q8_0", 32, 34, _q8_0_codes, (8,), "one", offset=128),
        BlockFormat("Q4_0", 32, 18, _q4_0_codes, (4,), "one", offset=8),
        BlockFormat("Q4_1", 32, 20, _q4_1_codes, (4,), "affine"),
        BlockFormat("Q5_0", 32, 22, _q5_0_codes, (4, 1), "one", offset=16),
        BlockFormat("Q5_1", 32, 24, _q5_1_codes, (4, 1), "affine"),
        BlockFormat("Q4_K", 256, 144, _q4_k_codes, (4,), "super_affine", byte_scales=_k_scales),
        BlockFormat("Q5_K", 256, 176, _q5_k_codes, (4, 1), "super_affine", byte_scales=_k_scales),
        BlockFormat(
            *("Q6_K", 256, 210, _q6_k_codes, (4, 2), "super_signed_halves"),
            offset=32,
            first_half=208,
            byte_scales=_q6_k_scales,
        ),
        BlockFormat("IQ4_NL", 32, 18, _q4_0_codes, (4,), "one", table=IQ4_CODEBOOK),
        BlockFormat(
            "IQ4_XS", 256, 136, _iq4_xs_codes, (4,), "super_signed", table=IQ4_CODEBOOK, byte_scales=_iq4_xs_scales
        ),
        BlockFormat("TQ3_1S", 32, 16, _tq3_1s_codes, (2, 1), "halves", table=TQ3_CENTROIDS),
        BlockFormat("TQ4_1S", 32, 20, _tq4_1s_codes, (4,), "halves", table=TQ4_CENTROIDS),
    )
}
"""Formats that are computed with directly, by name."""
