"""TurboQuant: rotate a group of values so that they look Gaussian, and keep the nearest centroid of each and one norm.

A group has 128 values, or 64 where a head is no wider; other widths are padded with zeros. The rotation is
s2 * H (s1 * x) with H the orthonormal Walsh-Hadamard transform and s1, s2 fixed random signs of our own: caches are not
exchanged with other programs, whose signs differ from each other as well. The norm that is kept makes up for the
centroids' own: it is that of the group over that of its centroids.

The forks' centroids, which are for a variance of 1/128, are ours at 2 and 3 bits, to a percent. Theirs at 4 bits are
too close together: groups of 128 Gaussian values have a relative error of 0.135 with them, and of 0.096 with ours. The
forks use their tables for groups of 64 as well, where tables for 1/64 bring the errors at 2 and 3 bits from 0.37 and
0.22 down to 0.34 and 0.18.

Source: Zandieh et al., TurboQuant, arXiv 2504.19874 (random rotation, Lloyd-Max centroids of a coordinate); the groups
and the corrected norm as in the llama.cpp forks that have TURBO2_0, TURBO3_0 and TURBO4_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, UInt8

from pallas_kernels.centroids import LLOYD_MAX, symmetric
from pallas_kernels.elementwise import look_up
from pallas_kernels.hadamard import walsh_hadamard
from pallas_kernels.kv_formats.format import KVFormat, Parts, pad, to_finite
from pallas_kernels.kv_formats.packing import pack, pack_bits, unpack, unpack_bits

GROUP, SMALL_GROUP = 128, 64


@cache
def signs(group: int) -> tuple[np.ndarray, np.ndarray]:
    """s1 and s2 for groups of a size, +1 or -1."""
    drawn = np.random.default_rng([2504, 19874, group]).integers(0, 2, (2, group))
    first, second = (2 * drawn - 1).astype(np.float32)
    return first, second


@dataclass(frozen=True)
class Turbo(KVFormat):
    """Rotated groups, each with a norm and centroids; see the module."""

    def group(self, width: int) -> int:
        """Values that share a norm in vectors of a width."""
        return SMALL_GROUP if width <= SMALL_GROUP else GROUP

    def centroids(self, group: int) -> np.ndarray:
        """All centroids in ascending order, for values with the variance 1 / group."""
        return np.array(symmetric(LLOYD_MAX[self.bits]), np.float32) * np.float32(group**-0.5)

    def unscaled(self, codes: Array, group: int) -> Float[Array, "..."]:
        positive = self.centroids(group)[1 << self.bits - 1 :]
        upper = codes >= len(positive)
        chosen = look_up([float(x) for x in positive], jnp.where(upper, codes, ~codes) & len(positive) - 1)
        return jnp.where(upper, chosen, -chosen)

    def rotate(self, x: Float[Array, "... N"]) -> Float[Array, "... stored"]:
        """Group by group, in float32."""
        group = self.group(x.shape[-1])
        first, second = map(jnp.asarray, signs(group))
        x = pad(x.astype(jnp.float32), self.stored_width(x.shape[-1]))
        groups = x.reshape(*x.shape[:-1], -1, group)
        return walsh_hadamard(groups, before=first, after=second).reshape(x.shape)

    def unrotate(self, x: Float[Array, "... stored"], width: int) -> Float[Array, "... N"]:
        """Rotate back. The transform is its own inverse, so only the signs change places."""
        group = self.group(width)
        first, second = map(jnp.asarray, signs(group))
        groups = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, group)
        groups = walsh_hadamard(groups, before=second, after=first)
        return groups.reshape(x.shape)[..., :width]

    def encode(self, x: Float[Array, "... N"]) -> Parts:
        """Codes uint8 [..., stored * bits / 8], norms [..., groups]; a group of zeros is kept as zeros."""
        group = self.group(x.shape[-1])
        rotated = self.rotate(x)
        rotated = rotated.reshape(*x.shape[:-1], -1, group)
        norm = jnp.sqrt(jnp.sum(rotated**2, axis=-1))
        unit = rotated / jnp.where(norm == 0, 1, norm)[..., None]
        table = self.centroids(group)
        codes = jnp.sum(unit[..., None] > (table[1:] + table[:-1]) / 2, axis=-1, dtype=jnp.uint8)
        corrected = norm / jnp.sqrt(jnp.sum(jnp.take(table, codes) ** 2, axis=-1))
        packed = self._pack(jnp.where(norm[..., None] == 0, 0, codes).astype(jnp.uint8))
        return {"codes": packed.reshape(*x.shape[:-1], -1), "scales": to_finite(corrected, jnp.float16)}

    def decode(self, parts: Parts) -> Float[Array, "... stored"]:
        """Decode to values that are still rotated; see `KVFormat.decode`."""
        codes, norms = parts["codes"], parts["scales"]
        groups = codes.reshape(*norms.shape, -1)
        group = groups.shape[-1] * 8 // self.bits
        values = jnp.take(self.centroids(group), self._unpack(groups).astype(jnp.int32), mode="clip")
        return (values * norms.astype(jnp.float32)[..., None]).reshape(*codes.shape[:-1], -1)

    def _pack(self, codes: UInt8[Array, "... group"]) -> UInt8[Array, "... group*bits/8"]:
        """Three bits are kept as two and one, the low bits of all values first."""
        if self.bits != 3:
            return pack(codes, self.bits)
        return jnp.concatenate([pack(codes & 3, 2), pack_bits(codes >> 2)], axis=-1)

    def _unpack(self, packed: UInt8[Array, "... group*bits/8"]) -> UInt8[Array, "... group"]:
        if self.bits != 3:
            return unpack(packed, self.bits)
        low = packed.shape[-1] * 2 // 3
        return unpack(packed[..., :low], 2) | unpack_bits(packed[..., low:]) << 2


TURBO2, TURBO3, TURBO4 = (Turbo(f"turbo{bits}", bits) for bits in (2, 3, 4))
