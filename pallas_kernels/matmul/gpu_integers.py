"""A tile of a product of few rows for NVIDIA GPUs, in whole numbers, on tensor cores.

A row of x is rounded to 16 bits: whole numbers times a scale, for each 32 columns. Such a number is two of 8 bits, and
a product of `gpu_fragments` has room for those of four rows. The other factor are codes, without what their scales make
of them. So sums over the columns that share a scale are exact; scales are applied to these sums, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jaxtyping import Float, Int8

from pallas_kernels.matmul.gpu_fragments import ROWS, Layouts, product, read_once, words_of
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


def multiply(tile: Tile, x: Any, x_largest: Any, groups: int) -> tuple[Float[Array, "4 columns"], ...]:
    """The sums of a program, for each set of four rows of x.

    Args:
        tile: what the program works on.
        x, x_largest: references to what `rounded` gives.
        groups: of rows of the first plane, which are read before they are multiplied.
    """
    work = _Work(tile, x, x_largest)

    def step(index: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        for read in [work.read(index * groups + turn) for turn in range(groups)]:
            sums = work.added(sums, read)
        return sums

    zeros = work.placed(jnp.zeros((ROWS, tile.width), jnp.float32))
    return lax.fori_loop(*tile.share(tile.chunks * work.in_chunk // groups), step, (zeros,) * x.shape[1])


class _Read(NamedTuple):
    """Some rows of the planes: of each field of the first plane's bytes a group of columns of the matrix.

    Attributes:
        chunk, place: which chunk, and which rows of the first plane there.
        planes: bytes of each plane.
        scales: of each field, as `scale_and_bias` gives them.
    """

    chunk: Array
    place: Array
    planes: list[Array]
    scales: list[tuple[Array, Array | None]]


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
        return laid_out(sums, self.layouts.sums, interpreted=self.tile.interpreted)

    def spread(self, numbers: Array, axis: int) -> Array:
        """Numbers of the rows of x (axis 0), or of columns, for every sum."""
        return self.placed(lax.broadcast_in_dim(numbers, (ROWS, self.tile.width), (axis,)))

    def loaded(self, ref: Any, layout: Any) -> Array:
        return load(ref, layout, interpreted=self.tile.interpreted)

    def read(self, index: Array) -> _Read:
        kind = self.tile.kind
        chunk, place = quotient_and_rest(index, self.in_chunk)
        planes = []
        for name, bits in zip(plane_names(kind), kind.planes, strict=True):
            pieces = 32 * bits // self.group
            ref = self.tile.rows(name, (chunk * pieces + (place & pieces - 1)) * self.group, self.group)
            if name == "plane0":
                planes.append(read_once(ref, self.layouts, interpreted=self.tile.interpreted))
            else:
                planes.append(self.loaded(ref, self.layouts.bytes))

        def numbers(at: Array, name: str) -> Array:
            row = chunk if name.startswith("super_") else chunk * (CHUNK // self.group) + at
            return floats(self.loaded(self.tile.rows(name, row), self.layouts.of_columns))

        fields = range(8 // kind.planes[0])
        scales = [scale_and_bias(self.tile.parts, partial(numbers, field * self.in_chunk + place)) for field in fields]
        return _Read(chunk, place, planes, scales)

    def added(self, sums: tuple[Array, ...], read: _Read) -> tuple[Array, ...]:
        """Sums with the products of what was read."""
        words = [words_of(plane, self.layouts, interpreted=self.tile.interpreted) for plane in read.planes]
        for field, (scale, bias) in enumerate(read.scales):
            at = field * self.in_chunk + read.place
            codes, factor = self.codes(words, field, at)
            place, half = quotient_and_rest(read.chunk * (CHUNK // self.group) + at, GROUP // self.group)
            after = []
            for row_set, total in enumerate(sums):
                rows = self.x.at[self.tile.block, row_set, place, :, pl.ds(half * self.group, self.group)]
                products, x_sum = product(
                    codes, self.loaded(rows, self.layouts.x), self.layouts, interpreted=self.tile.interpreted
                )
                largest = self.loaded(self.x_largest.at[self.tile.block, row_set, place], self.layouts.of_rows)
                x_scale = largest * (1 / LARGEST)
                if offset := self.tile.kind.codes.offset:
                    products = products - self.spread(factor * offset * x_sum, 0)
                scaled = products.astype(jnp.float32) * self.spread(scale, 1)  # the scales' product might underflow
                total = total + scaled * self.spread(x_scale * (1 / factor), 0)
                if bias is not None:
                    total = total + self.spread(bias, 1) * self.spread(x_scale * x_sum.astype(jnp.float32), 0)
                after.append(total)
            sums = tuple(after)
        return sums

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
