"""What kernels compute without gathers, and without types that their compilers lack."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int


def look_up(table: Sequence[float], index: Int[Array, "..."]) -> Float[Array, "..."]:
    """Entries of a table of a power of two numbers: choices between two by each bit of the index."""
    # Mosaic GPU takes integers that it has chosen among for numbers without a sign.
    entries: list[Array | float] = [float(entry) for entry in table]
    bit = 0
    while len(entries) > 1:
        odd = index >> bit & 1 != 0
        entries = [jnp.where(odd, high, low) for low, high in zip(entries[::2], entries[1::2], strict=True)]
        bit += 1
    return jnp.asarray(entries[0], jnp.float32)


def float_of_half(bits: Int[Array, "..."]) -> Float[Array, "..."]:
    """The float32 that is equal to the float16 of some bits (int32). Numbers below 2^-14 are not lost to flushing."""
    magnitude, exponent = (bits & 0x7FFF) << 13, bits & 0x7C00
    bias = jnp.where(exponent == 0x7C00, 2 * 112 << 23, 112 << 23)
    normal = lax.bitcast_convert_type(magnitude + bias, jnp.float32)
    value = jnp.where(exponent == 0, (bits & 0x3FF).astype(jnp.float32) * 2.0**-24, normal)
    return jnp.where(bits & 0x8000 == 0, value, -value)
