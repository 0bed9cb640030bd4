"""A tile of a product of few rows for NVIDIA GPUs, in whole numbers, on tensor cores.

A row of x is rounded to 16 bits: whole numbers times a scale, for each 32 columns. Such a number is two of 8 bits, and
a product of `gpu_fragments` has room for those of four rows. The other factor are codes, without what their scales make
of them. So sums over the columns that share a scale are exact; scales are applied to these sums, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jaxtyping import Float, Int, Int8

from pallas_kernels.matmul.gpu_fragments import (
    ROWS,
    SLICE,
    Layouts,
    product,
    side_by_side,
    slices_of,
    sums_of_rows,
    words_of,
)
from pallas_kernels.matmul.gpu_tile import Tile, quotient_and_rest
from pallas_kernels.matmul.planes import CHUNK, GROUP, floats, plane_names, scale_and_bias
from pallas_kernels.mosaic_gpu import laid_out, load

LARGEST, TINY = 127 * 256 + 127, np.float32(1e-33)
"""The largest whole number that is 256 times a number of 8 bits and one more such number; and what counts as the
largest size in groups of smaller numbers, because LARGEST is divided by it."""


def rounded(x: Float[Array, "B M K"]) -> tuple[Int8[Array, "B T G 8 32"], Float[Array, "B T G 4"]]:
    """Rows of x in sets of four, for each group of 32 columns: whole numbers in two parts, and the largest size in x.

    Where that is M, a number x becomes x * LARGEST / M, rounded: 256 times the first part plus the second.
    """
    n_blocks, n_rows, _ = x.shape
    x = jnp.pad(x, ((0, 0), (0, -n_rows % ROWS), (0, 0)))
    x = x.reshape(n_blocks, -1, ROWS, x.shape[-1] // GROUP, GROUP)
    # The bits of a size grow with it, and those of NaN are beyond all: a largest float need not be NaN on every device.
    bits = lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF
    largest = lax.bitcast_convert_type(jnp.max(bits, axis=-1, initial=TINY.view(np.int32)), jnp.float32)
    whole = jnp.round(x * (LARGEST / largest)[..., None]).astype(jnp.int32)
    high = (whole + 128) >> 8
    parts = jnp.moveaxis(jnp.stack([high, whole - 256 * high], axis=3), 4, 2).astype(jnp.int8)
    return parts.reshape(*parts.shape[:3], 2 * ROWS, GROUP), jnp.swapaxes(largest, -1, -2)


def multiply(tile: Tile, x: Any, x_largest: Any) -> tuple[Float[Array, "4 columns"], ...]:
    """The sums of a program, for each set of four rows of x.

    What is multiplied next is read before the products, so that memory works while the program computes.

    Args:
        tile: what the program works on.
        x, x_largest: references to what `rounded` gives.
    """
    work = _Work(tile, x, x_largest)
    begin, end = tile.share(tile.chunks * work.in_chunk)

    def step(index: Array, carried: tuple[list[list[Array]], _Read]) -> tuple[list[list[Array]], _Read]:
        sums, read = carried
        # After the last step it is read again. A share may be empty.
        following = work.read(jnp.maximum(jnp.minimum(index + 1, end - 1), begin))
        return work.added(sums, read), following

    zeros = work.placed(jnp.zeros((ROWS, SLICE), jnp.float32))
    carried = [[zeros] * x.shape[1]] * work.layouts.slices, work.read(begin)
    sums, _ = lax.fori_loop(begin, end, step, carried)
    sets = zip(*sums, strict=True)
    return tuple(side_by_side(slices, work.layouts, interpreted=tile.interpreted) for slices in sets)


class _Read(NamedTuple):
    """Some rows of the planes: of each field of the first plane's bytes a group of columns of the matrix.

    Attributes:
        places: which group of its chunk is in each field.
        planes: bytes of each plane, by slices.
        numbers: scales and what else the parts have for columns of the planes, as they lie: for each field, by slices.
        rows: of x, for each field by sets of four: the whole numbers, and the largest size.
    """

    places: list[Array]
    planes: list[list[Array]]
    numbers: dict[str, list[list[Array]]]
    rows: list[list[tuple[Array, Array]]]


class _Rows(NamedTuple):
    """A group of columns of four rows of x.

    Attributes:
        parts: whole numbers, in two parts.
        total: the sum of the whole numbers of each row.
        scale: what the whole numbers are to be multiplied with.
    """

    parts: Int8[Array, "8 group"]
    total: Int[Array, " 4"]
    scale: Float[Array, " 4"]


@dataclass(frozen=True)
class _Work:
    """What a program does; see `multiply`."""

    tile: Tile
    x: Any
    x_largest: Any

    @property
    def group(self) -> int:
        """Columns of the matrix that share a scale."""
        return self.tile.kind.per_scale

    @property
    def in_chunk(self) -> int:
        """How many times a group the rows are that a chunk has in the first plane."""
        return 32 * self.tile.kind.planes[0] // self.group

    @property
    def layouts(self) -> Layouts:
        return Layouts(self.tile.width // 32, self.group)

    def placed(self, sums: Array) -> Array:
        return laid_out(sums, self.layouts.slice.sums, interpreted=self.tile.interpreted)

    def spread(self, numbers: Array, axis: int) -> Array:
        """Numbers of the rows of x (axis 0), or of columns, for every sum of a slice."""
        return self.placed(lax.broadcast_in_dim(numbers, (ROWS, SLICE), (axis,)))

    def read(self, index: Array) -> _Read:
        kind = self.tile.kind
        chunk, place = quotient_and_rest(index, self.in_chunk)
        places = [field * self.in_chunk + place for field in range(8 // kind.planes[0])]

        def slices(name: str, *rows: Any) -> list[Array]:
            ref, once = self.tile.rows(name, *rows), name == "plane0"
            return slices_of(ref, self.layouts, once=once, interpreted=self.tile.interpreted)

        planes = []
        for name, bits in zip(plane_names(kind), kind.planes, strict=True):
            pieces = 32 * bits // self.group
            planes.append(slices(name, (chunk * pieces + (place & pieces - 1)) * self.group, self.group))
        numbers = {}
        for name in self.tile.parts:
            if name in plane_names(kind):
                continue
            if name.startswith("super_"):
                numbers[name] = [slices(name, chunk)] * len(places)
            else:
                numbers[name] = [slices(name, chunk * (CHUNK // self.group) + at) for at in places]
        return _Read(places, planes, numbers, [self.rows_of_x(chunk, at) for at in places])

    def added(self, sums: list[list[Array]], read: _Read) -> list[list[Array]]:
        """Sums of each slice and set of rows, with the products of what was read."""
        fields = [[self.summed(*rows) for rows in row_sets] for row_sets in read.rows]
        after = []
        for i, totals in enumerate(sums):
            words = [words_of(plane[i], self.layouts.slice, interpreted=self.tile.interpreted) for plane in read.planes]
            for field, (at, row_sets) in enumerate(zip(read.places, fields, strict=True)):
                codes, factor = self.codes(words, field, at)
                scale, bias = scale_and_bias(
                    read.numbers, lambda name, field=field, i=i: floats(read.numbers[name][field][i])
                )
                totals = [
                    self.with_products(total, rows, codes, factor, scale, bias)
                    for total, rows in zip(totals, row_sets, strict=True)
                ]
            after.append(totals)
        return after

    def rows_of_x(self, chunk: Array, at: Array) -> list[tuple[Array, Array]]:
        """A group of columns of x, for each set of four rows."""
        place, half = quotient_and_rest(chunk * (CHUNK // self.group) + at, GROUP // self.group)
        columns = pl.ds(half * self.group, self.group)
        layouts, interpreted = self.layouts.slice, self.tile.interpreted
        return [
            (
                load(self.x.at[self.tile.block, i, place, :, columns], layouts.x, interpreted=interpreted),
                load(self.x_largest.at[self.tile.block, i, place], layouts.of_rows, interpreted=interpreted),
            )
            for i in range(self.x.shape[1])
        ]

    def summed(self, parts: Array, largest: Array) -> _Rows:
        total = sums_of_rows(parts, self.layouts.slice, interpreted=self.tile.interpreted)
        return _Rows(parts, total, largest * (1 / LARGEST))

    def with_products(
        self, total: Array, rows: _Rows, codes: Array, factor: int, scale: Array, bias: Array | None
    ) -> Array:
        """Sums of a slice with those of a group of columns, whose codes are multiplied by a factor."""
        products = product(codes, rows.parts, self.layouts.slice, interpreted=self.tile.interpreted)
        if offset := self.tile.kind.codes.offset:
            products = products - self.spread(factor * offset * rows.total, 0)
        scaled = products.astype(jnp.float32) * self.spread(scale, 1)  # the scales' product might underflow
        total = total + scaled * self.spread(rows.scale * (1 / factor), 0)
        if bias is None:
            return total
        return total + self.spread(bias, 1) * self.spread(rows.scale * rows.total.astype(jnp.float32), 0)

    def codes(self, words: Sequence[Array], field: int, at: Array) -> tuple[Array, int]:
        """Four codes in a word, times a factor: where there is one plane only, they stay where they lie in a byte.

        Args:
            words: of each plane.
            field: of the first plane's bytes.
            at: which group of its chunk that is.
        """
        kind = self.tile.kind
        if len(words) == 1:
            factor = 1 << field * kind.planes[0]
            return words[0] & jnp.uint32(0x01010101 * factor * ((1 << kind.planes[0]) - 1)), factor
        codes = []
        for i, (own, bits) in enumerate(zip(words, kind.planes, strict=True)):
            shift = (quotient_and_rest(at, 32 * bits // self.group)[0] * bits).astype(jnp.uint32)
            codes.append((own >> shift & jnp.uint32(0x01010101 * ((1 << bits) - 1))) << sum(kind.planes[:i]))
        return reduce(jnp.bitwise_or, codes), 1
