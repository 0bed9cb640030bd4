"""Block formats of quantized matrices: how many bytes hold how many values, and what the bytes mean.

A row of a matrix is a sequence of blocks. `decode` maps the bytes of a block, [..., num_bytes] uint8, to its values,
[..., values] float32, in the arithmetic of the format's definition: every other reading of a format is tested against
it.

Sources: ggml `src/ggml-common.h` (layouts, the IQ4 codebook) and `src/ggml-quants.c` (`dequantize_row_*`); the TQ
formats as in the public TurboQuant forks of llama.cpp. Scales are little-endian float16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int8, UInt8

IQ4_CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TQ3_CENTROIDS = (-1.996684, -1.291398, -0.740341, -0.247508, 0.230106, 0.725222, 1.277503, 1.988943)
_TQ4_POSITIVE = (0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590)
TQ4_CENTROIDS = (*(-c for c in reversed(_TQ4_POSITIVE)), *_TQ4_POSITIVE)
TQ_SIGNS = tuple(1 if sign == "+" else -1 for sign in "+-+-++-+--+-++-+--+-+--+-++-+--+")
"""Of the rotation of a block of 32 in the TQ formats."""


@dataclass(frozen=True)
class BlockFormat:
    """A block format.

    Attributes:
        name: as in GGUF.
        values, num_bytes: of a block.
        codes: the integers of a block, one byte each, without what its scales make of them.
        decode: see the module.
    """

    name: str
    values: int
    num_bytes: int
    codes: Callable[[UInt8[Array, "... bytes"]], UInt8[Array, "... values"]]
    decode: Callable[[UInt8[Array, "... bytes"]], Float[Array, "... values"]]

    @property
    def bits_per_value(self) -> float:
        """Scales included."""
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


def _q8_0(block: Array) -> Array:
    return _half(block, 0) * (_float(_q8_0_codes(block)) - 128)


def _q4_0_codes(block: Array) -> Array:
    return _halves(block[..., 2:])


def _q4_0(block: Array) -> Array:
    return _half(block, 0) * (_float(_q4_0_codes(block)) - 8)


def _q4_1_codes(block: Array) -> Array:
    return _halves(block[..., 4:])


def _q4_1(block: Array) -> Array:
    return _half(block, 0) * _float(_q4_1_codes(block)) + _half(block, 2)


def _q5_0_codes(block: Array) -> Array:
    return _halves(block[..., 6:]) | _bits(block[..., 2:6], 1) << 4


def _q5_0(block: Array) -> Array:
    return _half(block, 0) * (_float(_q5_0_codes(block)) - 16)


def _q5_1_codes(block: Array) -> Array:
    return _halves(block[..., 8:]) | _bits(block[..., 4:8], 1) << 4


def _q5_1(block: Array) -> Array:
    return _half(block, 0) * _float(_q5_1_codes(block)) + _half(block, 2)


def k_scales(packed: UInt8[Array, "... 12"]) -> tuple[UInt8[Array, "... 8"], UInt8[Array, "... 8"]]:
    """The eight 6-bit scales and the eight 6-bit minima of a block of Q4_K or Q5_K."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = jnp.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=-1)
    minima = jnp.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=-1)
    return scales, minima


def _k_affine(block: Array, codes: Array) -> Array:
    """Values of the codes [..., 256] of a block of Q4_K or Q5_K."""
    scales, minima = k_scales(block[..., 4:16])
    scaled = (_half(block, 0) * _float(scales))[..., None] * _float(codes).reshape(*block.shape[:-1], 8, 32)
    return (scaled - (_half(block, 2) * _float(minima))[..., None]).reshape(*block.shape[:-1], 256)


def _q4_k_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    return _planes(block[..., 16:].reshape(*lead, 4, 32), 4, 2).reshape(*lead, 256)


def _q4_k(block: Array) -> Array:
    return _k_affine(block, _q4_k_codes(block))


def _q5_k_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    low = _planes(block[..., 48:].reshape(*lead, 4, 32), 4, 2).reshape(*lead, 8, 32)
    return (low | _planes(block[..., 16:48], 1, 8) << 4).reshape(*lead, 256)


def _q5_k(block: Array) -> Array:
    return _k_affine(block, _q5_k_codes(block))


def _q6_k_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    low = _planes(block[..., :128].reshape(*lead, 2, 64), 4, 2).reshape(*lead, 2, 128)
    high = _planes(block[..., 128:192].reshape(*lead, 2, 32), 2, 4).reshape(*lead, 2, 128)
    return (low | high << 4).reshape(*lead, 256)


def q6_k_scales(block: UInt8[Array, "... bytes"]) -> Int8[Array, "... 16"]:
    """The scales of a block of Q6_K that multiply its float16, for 16 values each."""
    return lax.bitcast_convert_type(block[..., 192:208], jnp.int8)


def _q6_k(block: Array) -> Array:
    lead = block.shape[:-1]
    codes = _float(_q6_k_codes(block)) - 32
    scales = _half(block, 208) * _float(q6_k_scales(block))
    return (scales[..., None] * codes.reshape(*lead, 16, 16)).reshape(*lead, 256)


def _codebook(table: tuple[float, ...], codes: Array) -> Array:
    return jnp.take(jnp.array(table, jnp.float32), codes.astype(jnp.int32), axis=0, mode="clip")


def _iq4_nl(block: Array) -> Array:
    return _half(block, 0) * _codebook(IQ4_CODEBOOK, _q4_0_codes(block))


def _iq4_xs_codes(block: Array) -> Array:
    lead = block.shape[:-1]
    return _halves(block[..., 8:].reshape(*lead, 8, 16)).reshape(*lead, 256)


def iq4_xs_scales(block: UInt8[Array, "... bytes"]) -> Int8[Array, "... 8"]:
    """The scales of a block of IQ4_XS that multiply its float16, for 32 values each."""
    return (_bits(block[..., 4:8], 4) | _bits(block[..., 2:4], 2) << 4).astype(jnp.int8) - 32


def _iq4_xs(block: Array) -> Array:
    lead = block.shape[:-1]
    scaled = (_half(block, 0) * _float(iq4_xs_scales(block)))[..., None]
    return (scaled * _codebook(IQ4_CODEBOOK, _iq4_xs_codes(block)).reshape(*lead, 8, 32)).reshape(*lead, 256)


def _tq(block: Array, centroids: tuple[float, ...], codes: Array) -> Array:
    scales = jnp.repeat(jnp.concatenate([_half(block, 0), _half(block, 2)], axis=-1), 16, axis=-1)
    return jnp.matmul(_codebook(centroids, codes) * scales, jnp.asarray(tq_rotation()), precision="highest")


def _tq3_1s_codes(block: Array) -> Array:
    bits = _bits(block[..., 4:], 1).reshape(*block.shape[:-1], 32, 3)
    return bits[..., 0] | bits[..., 1] << 1 | bits[..., 2] << 2


def _tq3_1s(block: Array) -> Array:
    return _tq(block, TQ3_CENTROIDS, _tq3_1s_codes(block))


def _tq4_1s_codes(block: Array) -> Array:
    return _bits(block[..., 4:], 4)


def _tq4_1s(block: Array) -> Array:
    return _tq(block, TQ4_CENTROIDS, _tq4_1s_codes(block))


FORMATS = {
    format.name: format
    for format in (
        BlockFormat("Q8_0", 32, 34, _q8_0_codes, _q8_0),
        BlockFormat("Q4_0", 32, 18, _q4_0_codes, _q4_0),
        BlockFormat("Q4_1", 32, 20, _q4_1_codes, _q4_1),
        BlockFormat("Q5_0", 32, 22, _q5_0_codes, _q5_0),
        BlockFormat("Q5_1", 32, 24, _q5_1_codes, _q5_1),
        BlockFormat("Q4_K", 256, 144, _q4_k_codes, _q4_k),
        BlockFormat("Q5_K", 256, 176, _q5_k_codes, _q5_k),
        BlockFormat("Q6_K", 256, 210, _q6_k_codes, _q6_k),
        BlockFormat("IQ4_NL", 32, 18, _q4_0_codes, _iq4_nl),
        BlockFormat("IQ4_XS", 256, 136, _iq4_xs_codes, _iq4_xs),
        BlockFormat("TQ3_1S", 32, 16, _tq3_1s_codes, _tq3_1s),
        BlockFormat("TQ4_1S", 32, 20, _tq4_1s_codes, _tq4_1s),
    )
}
"""Formats that are computed with directly, by name."""
