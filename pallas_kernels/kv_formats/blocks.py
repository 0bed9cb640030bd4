"""Blocks of 32 values that share a scale, quantized as ggml's Q8_0 and Q4_0 are; other widths are padded with zeros.

Source: `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref` in llama.cpp's `ggml/src/ggml-quants.c`. There a block's
scale and codes stand together; here they are two arrays, and a scale beyond float16 is the largest float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from pallas_kernels.kv_formats.format import KVFormat, Parts, to_finite
from pallas_kernels.kv_formats.packing import pack, unpack

BLOCK = 32


def _inverse(scale: Array) -> Array:
    return jnp.where(scale == 0, 0, 1 / jnp.where(scale == 0, 1, scale))


@dataclass(frozen=True)
class BlockFormat(KVFormat):
    """What the two formats have in common."""

    def group(self, width: int) -> int:
        return BLOCK

    def _blocks(self, x: Float[Array, "... N"]) -> Float[Array, "... N/32 32"]:
        x = self.rotate(x).astype(jnp.float32)
        return x.reshape(*x.shape[:-1], -1, BLOCK)


@dataclass(frozen=True)
class Q8(BlockFormat):
    """A code is the value over the scale, the scale the largest magnitude over 127."""

    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """Codes int8 [..., stored], scales [..., stored / 32]."""
        blocks = self._blocks(x)
        largest = jnp.max(jnp.abs(blocks), axis=-1)
        broken = jnp.any(jnp.isnan(blocks), axis=-1)  # on CPUs XLA's maximum of many passes NaN over
        scale = jnp.where(broken, jnp.nan, largest) / 127
        scaled = blocks * _inverse(scale)[..., None]
        codes = jnp.sign(scaled) * jnp.floor(jnp.abs(scaled) + 0.5)  # halves away from zero
        return {"codes": codes.astype(jnp.int8).reshape(*x.shape[:-1], -1), "scales": to_finite(scale, jnp.float16)}

    def decode(self, parts: Parts) -> Float[Array, "... stored"]:
        return parts["codes"].astype(jnp.float32) * jnp.repeat(parts["scales"].astype(jnp.float32), BLOCK, axis=-1)

    def unscaled(self, codes: Array, group: int) -> Float[Array, "..."]:
        # Without the shifts Mosaic turns bytes into floats in one operation, in which its compiler for v6e (libtpu
        # 0.0.42) fails where vectors do not fill 128 lanes.
        return (codes << 24 >> 24).astype(jnp.float32)


@dataclass(frozen=True)
class Q4(BlockFormat):
    """A code is the value over the scale, kept as a two's complement of 4 bits; the largest magnitude becomes -8."""

    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """Codes uint8 [..., stored / 2], scales [..., stored / 32]."""
        blocks = self._blocks(x)
        at = jnp.argmax(jnp.abs(blocks), axis=-1, keepdims=True)
        scale = jnp.take_along_axis(blocks, at, axis=-1)[..., 0] / -8
        codes = jnp.clip(jnp.floor(blocks * _inverse(scale)[..., None] + 8.5), 0, 15).astype(jnp.uint8)
        packed = pack(codes ^ 8, 4)
        return {"codes": packed.reshape(*x.shape[:-1], -1), "scales": to_finite(scale, jnp.float16)}

    def decode(self, parts: Parts) -> Float[Array, "... stored"]:
        packed = parts["codes"].reshape(*parts["codes"].shape[:-1], -1, BLOCK // 2)
        codes = lax.bitcast_convert_type((unpack(packed, 4) ^ 8), jnp.int8).astype(jnp.float32) - 8
        return (codes * parts["scales"].astype(jnp.float32)[..., None]).reshape(*packed.shape[:-2], -1)

    def unscaled(self, codes: Array, group: int) -> Float[Array, "..."]:
        return ((codes ^ 8) - 8).astype(jnp.float32)


Q8_0 = Q8("q8_0", 8)
Q4_0 = Q4("q4_0", 4)
