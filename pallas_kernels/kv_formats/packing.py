"""Several small codes in a byte."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import UInt8


def pack(codes: UInt8[Array, "... n"], bits: int) -> UInt8[Array, "... n*bits/8"]:
    """Codes of 2 or 4 bits, 8 / bits of them to a byte.

    Byte i has code i in its lowest bits, then codes i + m, i + 2 m, ... where m is the number of bytes: unpacking is a
    shift of whole vectors. With 4 bits that is the order of a block of llama.cpp's Q4_0.
    """
    planes = codes.reshape(*codes.shape[:-1], 8 // bits, -1)
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)[:, None]
    return jnp.sum(planes << shifts, axis=-2, dtype=jnp.uint8)


def unpack(packed: UInt8[Array, "... m"], bits: int) -> UInt8[Array, "... m*8/bits"]:
    """Read the codes that `pack` has written."""
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)[:, None]
    planes = (packed[..., None, :] >> shifts) & ((1 << bits) - 1)
    return planes.reshape(*packed.shape[:-1], -1)


def pack_bits(bits: UInt8[Array, "... n"]) -> UInt8[Array, "... n/8"]:
    """Single bits in their order, lowest first: those of 16 values are the mask of a vector of 16 lanes."""
    eights = bits.reshape(*bits.shape[:-1], -1, 8)
    return jnp.sum(eights << jnp.arange(8, dtype=jnp.uint8), axis=-1, dtype=jnp.uint8)


def unpack_bits(packed: UInt8[Array, "... m"]) -> UInt8[Array, "... m*8"]:
    """Read the bits that `pack_bits` has written."""
    bits = (packed[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
    return bits.reshape(*packed.shape[:-1], -1)
