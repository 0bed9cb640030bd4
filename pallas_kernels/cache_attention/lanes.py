"""Codes as vectors of lanes: which value of a vector each lane has, decoded with elementwise operations only.

A lane is a byte (or float) of a stored vector. One that packs several codes gives several planes: the lowest bits of
every byte, the next ones, and so on. Values so come out in another order than they went in; products do not mind, as
long as queries are brought into the order of the keys' lanes, and outputs out of that of the values'.

Scales stay out of the decoded values: a product is taken for each group of values, and scaled after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels.kv_formats import KVFormat

CHUNK = 128
"""Most lanes of one product where values have scales: the depth of a matrix unit."""


@dataclass(frozen=True)
class Run:
    """Neighbouring lanes of one group of values: [first, last) of a chunk."""

    group: int
    first: int
    last: int


@dataclass(frozen=True)
class Chunk:
    """Lanes [first, last) of a plane, that enter one product, and the groups that they have values of.

    Attributes:
        at: number of runs in the chunks before.
    """

    plane: int
    first: int
    last: int
    runs: tuple[Run, ...]
    at: int

    @property
    def lanes(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Lanes:
    """Where the values of vectors of one width are in lanes.

    Attributes:
        kind: the format.
        width: N.
        order: [planes, C]: the stored value that a lane has; -1 where it has none.
        group: values that share a scale; 0 where there are no scales.
        chunks: in order of planes and lanes.
    """

    kind: KVFormat
    width: int
    order: np.ndarray
    group: int
    chunks: tuple[Chunk, ...]

    @property
    def lanes(self) -> int:
        """C, the entries of a vector's codes."""
        return self.order.shape[1]

    @property
    def runs(self) -> int:
        """How many runs all chunks have together."""
        return self.chunks[-1].at + len(self.chunks[-1].runs)

    @property
    def chunk_lanes(self) -> int:
        """How many lanes the largest chunk has."""
        return max(chunk.lanes for chunk in self.chunks)

    @property
    def product_type(self) -> DTypeLike:
        """The type of the operands of products.

        bfloat16 holds every integer code, and every value of a bf16 cache. Centroids are rounded to it.
        """
        return jnp.float32 if self.kind.name in ("f32", "f16") else jnp.bfloat16

    @property
    def precision(self) -> lax.Precision | None:
        """The precision of products in XLA; None is the default."""
        return lax.Precision.HIGHEST if self.product_type == jnp.float32 else None

    def spread_queries(self, q: Float[Array, "... R stored"]) -> Float[Array, "... runs*R lanes"]:
        """Rotated queries in the order of the lanes, those of each run with zeros in the place of other lanes."""
        rows = []
        for chunk in self.chunks:
            order = self.order[chunk.plane, chunk.first : chunk.last]
            for run in chunk.runs:
                own = np.zeros(self.chunk_lanes, bool)
                own[run.first : run.last] = order[run.first : run.last] >= 0
                source = np.zeros(self.chunk_lanes, np.int32)
                source[: chunk.lanes] = np.maximum(order, 0)
                rows.append(jnp.where(own, jnp.take(q, source, axis=-1), 0))
        return jnp.concatenate(rows, axis=-2)

    def gather_values(self, sums: Float[Array, "... planes R C"]) -> Float[Array, "... R stored"]:
        """Sums of values in their stored order."""
        flat = jnp.concatenate([sums[..., plane, :, :] for plane in range(len(self.order))], axis=-1)
        order = self.order.reshape(-1)
        place = np.zeros(self.kind.stored_width(self.width), np.int32)
        place[order[order >= 0]] = np.flatnonzero(order >= 0)
        return jnp.take(flat, place, axis=-1)

    def decode(self, codes: Array) -> list[Float[Array, "tile C"]]:
        """Each plane of a tile's codes without scales, float32; lanes that have no value have some finite number.

        `codes` are as stored, but for f16: those are the bits, uint16.
        """
        if self.kind.bits == 32:
            return [codes]
        bits = codes.astype(jnp.int32)
        if not self.group:
            return [self.kind.unscaled(bits, 0)]
        return self.unpack(bits, self._high_bits(bits) if self.kind.bits == 3 else None)

    def unpack(self, codes: Int[Array, "..."], high: Sequence[Int[Array, "..."]] | None = None) -> list[Array]:
        """Each plane of quantized values without scales, float32; `high` are the third bits of codes that have them."""
        size = 2 if high else self.kind.bits
        planes = [codes >> shift & ((1 << size) - 1) for shift in range(0, 8, size)] if size < 8 else [codes]
        if high:
            planes = [low | bit << 2 for low, bit in zip(planes, high, strict=True)]
        return [self.kind.unscaled(plane, self.group) for plane in planes]

    def _high_bits(self, bits: Int[Array, "tile C"]) -> list[Int[Array, "tile C"]]:
        """The third bit of each value in its lane. A product with ones and zeros brings bytes to other lanes."""
        source = iota(bits.shape[1:] * 2, 0)
        lane = iota(bits.shape[1:] * 2, 1)
        low_bytes, all_bytes = self.group // 4, self.group * 3 // 8
        here = lax.rem(lane, all_bytes)
        shift = lax.rem(iota(bits.shape, 1), all_bytes) & 7
        all_bits = (bits & 255).astype(jnp.float32).astype(jnp.bfloat16)  # masked as in `Q8.unscaled`
        planes = []
        for plane in range(4):
            wanted = lane - here + low_bytes + (here >> 3) + plane * (low_bytes // 8)
            move = ((source == wanted) & (here < low_bytes)).astype(jnp.float32).astype(jnp.bfloat16)
            moved = jnp.dot(all_bits, move, preferred_element_type=jnp.float32)
            planes.append(moved.astype(jnp.int32) >> shift & 1)
        return planes


def iota(shape: tuple[int, ...], axis: int) -> Int[Array, "..."]:
    """The index along an axis."""
    return lax.broadcasted_iota(jnp.int32, shape, axis)


@cache
def lanes_of(kind: KVFormat, width: int) -> Lanes:
    """The lanes of vectors of one width in a format."""
    group, bits = kind.group(width), kind.bits
    if not group:
        order = np.arange(width)[None]
        return Lanes(kind, width, order, 0, (Chunk(0, 0, width, (Run(0, 0, width),), 0),))
    low_bits = 2 if bits == 3 else bits
    planes, low_bytes, more_bytes = 8 // low_bits, group * low_bits // 8, group * (bits - low_bits) // 8
    values = np.arange(kind.stored_width(width)).reshape(-1, planes, low_bytes)
    order = np.pad(values, ((0, 0), (0, 0), (0, more_bytes)), constant_values=-1)
    order = order.transpose(1, 0, 2).reshape(planes, -1)
    return Lanes(kind, width, order, group, _chunks(order, group))


def _chunks(order: np.ndarray, group: int) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    for plane, values in enumerate(order):
        for first in range(0, len(values), CHUNK):
            part = values[first : first + CHUNK]
            lanes_by_group = {g: np.flatnonzero((part >= 0) & (part // group == g)) for g in part[part >= 0] // group}
            runs = tuple(Run(int(g), int(at[0]), int(at[-1]) + 1) for g, at in lanes_by_group.items())
            at = chunks[-1].at + len(chunks[-1].runs) if chunks else 0
            if runs:
                chunks.append(Chunk(plane, first, first + len(part), runs, at))
    return tuple(chunks)
