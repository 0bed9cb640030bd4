"""Stored vectors in the registers of a warpgroup: how they are dealt to its lanes, and decoded there (Mosaic GPU)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.cache_attention.lanes import Lanes
from pallas_kernels.kv_formats.blocks import BLOCK
from pallas_kernels.kv_formats.turbo import GROUP
from pallas_kernels.mosaic_gpu import load, plgpu

WARPS, LANES = 4, 32
MOST_VECTOR = 8
"""Values of a lane that lie side by side."""


def _more_than_one(count: int) -> tuple[int, ...]:
    """As an axis; layouts have no use for those of size 1."""
    return (count,) if count > 1 else ()


@dataclass(frozen=True)
class Tile:
    """One stored vector for each warp: [4, *shape], a plane at a time.

    Attributes:
        lanes: of the format.
        shape: (N / 128, 4, rest) where 128 divides N, so that every format deals a vector to lanes in the same way and
            keys can have another one than values; else (groups, bytes of a group), or (N,) without scales. A first axis
            of size 1 is left out. The low bits of a group of codes of 3 bits are (4, 8) bytes or fewer; a byte of high
            bits has one for each of 8.
        scale_axes: how many of `shape` the scales have.
    """

    lanes: Lanes
    shape: tuple[int, ...]
    scale_axes: int

    @staticmethod
    def of(lanes: Lanes) -> Tile:
        """The tile of a format and width."""
        width, group = lanes.kind.stored_width(lanes.width), lanes.group
        in_group = group // len(lanes.order)
        if lanes.width % GROUP == 0:
            parts = _more_than_one(width // GROUP)
            if group == BLOCK:
                return Tile(lanes, (*parts, 4, in_group), len(parts) + 1)
            return Tile(lanes, (*parts, 4, (in_group or GROUP) // 4), len(parts))
        if not group:
            return Tile(lanes, (width,), 0)
        parts = _more_than_one(width // group)
        return Tile(lanes, (*parts, *((in_group // 8, 8) if lanes.kind.bits == 3 else (in_group,))), len(parts))

    @property
    def order(self) -> np.ndarray:
        """[planes, *shape]: the stored value that an entry has."""
        order = self.lanes.order
        if self.three_bits:
            groups = self.lanes.kind.stored_width(self.lanes.width) // self.lanes.group
            order = order.reshape(len(order), groups, -1)[:, :, : math.prod(self.shape[-2:])]
        return order.reshape(len(order), *self.shape)

    @property
    def three_bits(self) -> bool:
        """Whether bytes of high bits follow those of low bits."""
        return self.lanes.kind.bits == 3

    @property
    def split(self) -> tuple[tuple[int, ...], int] | None:
        """Lanes along each axis, and neighbouring values along the last that a lane has: as many as there can be."""
        for vector in (MOST_VECTOR, 4, 2, 1):
            if self.shape[-1] % vector:
                continue
            left, lanes = LANES, []
            # The first axes first: these are the same in every format.
            for size in (*self.shape[:-1], self.shape[-1] // vector):
                lanes.append(math.gcd(left, size))
                left //= lanes[-1]
            if left == 1:
                return tuple(lanes), vector
        return None

    @property
    def layout(self) -> Any:
        """A warp has one of the four vectors."""
        assert self.split is not None, self.shape
        lanes, vector = self.split
        # A canonical layout has no tile that is the whole of the one before, and no lanes along axes of size 1.
        whole = (WARPS, *lanes[:-1], lanes[-1] * vector)
        divided = (WARPS, *lanes, vector) if lanes[-1] > 1 else whole
        return plgpu.Layout.TILED(
            plgpu.Tiling((whole, (vector,)) if lanes[-1] > 1 else (whole,)),
            warp_dims=(-len(divided),),
            lane_dims=tuple(axis for axis in range(1 - len(divided), -1) if divided[axis] > 1),
            vector_dim=-1,
        )


@dataclass(frozen=True)
class Registers:
    """Loads and broadcasts of a tile with register layouts, or without for the interpreter."""

    tile: Tile
    interpreted: bool

    def load(self, ref: Any, missing: tuple[int, ...] = ()) -> Array:
        """All of a reference, which lacks some axes of a tile."""
        layout = self.tile.layout.reduce(missing) if missing else self.tile.layout
        return load(ref, layout, interpreted=self.interpreted)

    def spread(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The same along the axes of a tile that x lacks."""
        x = lax.broadcast_in_dim(x, (WARPS, *self.tile.shape), axes)
        return x if self.interpreted else plgpu.layout_cast(x, self.tile.layout)

    def per_warp(self, x: Array) -> Array:
        """Give x the layout with one value for each of the four warps, [4]."""
        return x if self.interpreted else plgpu.layout_cast(x, self.tile.layout.reduce(self.values))

    @property
    def values(self) -> tuple[int, ...]:
        """All axes except the one of the warps."""
        return tuple(range(1, len(self.tile.shape) + 1))

    def sum(self, x: Array) -> Array:
        """[4]: over the values of a vector."""
        for axis in reversed(self.values):
            x = jnp.sum(x, axis=axis)
        return x

    def decode(self, refs: Mapping[str, Any], at: tuple[Any, ...]) -> list[Array]:
        """The planes of four vectors."""
        kind, codes = self.tile.lanes.kind, refs["codes"].at[at]
        if not kind.quantized:
            floats = self.load(codes)
            if kind.name == "bf16":
                return [lax.bitcast_convert_type(floats.astype(jnp.int32) << 16, jnp.float32)]
            return [floats.astype(jnp.float32)]
        axes = self.tile.scale_axes
        scales = self.load(refs["scales"].at[at], self.values[axes:]).astype(jnp.float32)
        scales = self.spread(scales, tuple(range(axes + 1)))
        if self.tile.three_bits:
            bits = self.load(self._rows(codes, pl.ds(0, self.tile.shape[-2]))).astype(jnp.int32)
            planes = self.tile.lanes.unpack(bits, [self._high_bits(codes, plane) for plane in range(4)])
        else:
            planes = self.tile.lanes.unpack(self.load(codes).astype(jnp.int32))
        return [plane * scales for plane in planes]

    def _rows(self, codes: Any, *index: Any) -> Any:
        """Of the bytes of a group, eight in a row."""
        return codes.at[(*(slice(None),) * (len(self.tile.shape) - 1), *index)]

    def _high_bits(self, codes: Any, plane: int) -> Array:
        """The third bits of a plane's codes: a byte has those of the 8 codes along the last axis."""
        count, axes = self.tile.shape[-2], len(self.tile.shape)
        row, column = divmod(count * plane, 8)
        packed = self.load(self._rows(codes, count + row, pl.ds(column, count)), (axes,)).astype(jnp.int32)
        bit = lax.broadcasted_iota(jnp.int32, (WARPS, *self.tile.shape), axes)
        bit = bit if self.interpreted else plgpu.layout_cast(bit, self.tile.layout)
        return self.spread(packed, tuple(range(axes))) >> bit & 1
