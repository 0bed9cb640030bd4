"""A tile of a product of few rows for NVIDIA GPUs, in whole numbers, on tensor cores.

Rows of x are rounded to whole numbers of 16 bits, see `gpu_rows`. Such a number is two of 8 bits, and a product of
`gpu_fragments` has room for those of four rows. The other factor are codes, without what their scales make of them. So
sums over the columns that share a scale are exact; scales are applied to these sums, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jaxtyping import Float, Int, Int8

from pallas_kernels.matmul.formats import BlockFormat
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
from pallas_kernels.matmul.gpu_rows import LARGEST, MOST_CHUNKS, Rows, shared_memory
from pallas_kernels.matmul.gpu_tile import Tile, quotient_and_rest
from pallas_kernels.matmul.planes import CHUNK, GROUP, floats, plane_names, scale_and_bias
from pallas_kernels.mosaic_gpu import laid_out, load


def multiply(tile: Tile, x: Any) -> tuple[Float[Array, "4 columns"], ...]:
    """The sums of a program, for each set of four rows of x.

    What is multiplied next is read before the products, so that memory works while the program computes.

    Args:
        tile: what the program works on.
        x: a reference to the rows of all blocks, as `by_groups` gives them.
    """
    x = x.at[tile.block]
    steps = tile.chunks * _in_chunk(tile.kind)
    in_share = -(-steps // tile.splits)
    # No share touches more chunks, wherever in a chunk it begins.
    chunks = min((in_share - 2) // _in_chunk(tile.kind) + 2, tile.chunks, MOST_CHUNKS)

    def run(parts: Any, largest: Any) -> tuple[Array, ...]:
        work = _Work(tile, Rows(x, chunks, parts, largest, tile.interpreted))
        sums = work.all_sums(*tile.share(steps))
        return tuple(
            side_by_side(slices, work.layouts, interpreted=tile.interpreted) for slices in zip(*sums, strict=True)
        )

    return pl.run_scoped(run, *shared_memory(x.shape[0], chunks))


def _in_chunk(kind: BlockFormat) -> int:
    """Steps of a chunk: how many groups of rows it has in the first plane."""
    return 32 * kind.planes[0] // kind.per_scale


class _Read(NamedTuple):
    """Some rows of the planes: of each field of the first plane's bytes a group of columns of the matrix.

    Attributes:
        places: which group of its chunk is in each field.
        planes: bytes of each plane, by slices.
        numbers: scales and what else the parts have for columns of the planes, as they lie: for each field, by slices.
    """

    places: list[Array]
    planes: list[list[Array]]
    numbers: dict[str, list[list[Array]]]


class _Group(NamedTuple):
    """A group of columns of four rows of x.

    Attributes:
        parts: whole numbers, in two parts.
        total: the sum of the whole numbers of each row.
        scale: what the whole numbers are to be multiplied with.
    """

    parts: Int8[Array, "4 2 group"]
    total: Int[Array, " 4"]
    scale: Float[Array, " 4"]


@dataclass(frozen=True)
class _Work:
    """What a program does; see `multiply`."""

    tile: Tile
    x: Rows

    @property
    def group(self) -> int:
        """Columns of the matrix that share a scale."""
        return self.tile.kind.per_scale

    @property
    def in_chunk(self) -> int:
        return _in_chunk(self.tile.kind)

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
        return _Read(places, planes, numbers)

    def all_sums(self, begin: Array, end: Array) -> list[list[Array]]:
        """Sums of each slice and set of rows over steps, which may be none."""

        def step(index: Array, carried: tuple[list[list[Array]], _Read], first: Array) -> Any:
            sums, read = carried
            following = self.read(jnp.minimum(index + 1, end - 1))  # after the last step, what it had once more
            return self.added(sums, read, quotient_and_rest(index, self.in_chunk)[0] - first), following

        def piece(number: Array, carried: tuple[list[list[Array]], _Read]) -> Any:
            own = first_chunk + number * self.x.chunks
            first = jnp.minimum(own, self.tile.chunks - self.x.chunks)  # some chunks before may be rounded again
            self.x.round(first)
            since, until = own * self.in_chunk, (own + self.x.chunks) * self.in_chunk
            return lax.fori_loop(
                jnp.maximum(begin, since), jnp.minimum(end, until), partial(step, first=first), carried
            )

        first_chunk = quotient_and_rest(begin, self.in_chunk)[0]
        pieces = lax.div(quotient_and_rest(end - 1, self.in_chunk)[0] - first_chunk, jnp.int32(self.x.chunks)) + 1
        zeros = self.placed(jnp.zeros((ROWS, SLICE), jnp.float32))
        carried = [[zeros] * self.x.sets] * self.layouts.slices, self.read(begin)
        sums, _ = lax.fori_loop(0, jnp.where(begin < end, pieces, 0), piece, carried)
        return sums

    def added(self, sums: list[list[Array]], read: _Read, chunk: Array) -> list[list[Array]]:
        """Sums of each slice and set of rows, with the products of what was read, of a chunk among those of x."""
        fields = [self.rows_of_x(chunk, at) for at in read.places]
        after = []
        for i, totals in enumerate(sums):
            words = [words_of(plane[i], self.layouts.slice, interpreted=self.tile.interpreted) for plane in read.planes]
            for field, (at, row_sets) in enumerate(zip(read.places, fields, strict=True)):
                codes, factor = self.codes(words, field, at)
                numbers = {name: floats(of_fields[field][i]) for name, of_fields in read.numbers.items()}
                scale, bias = scale_and_bias(numbers, numbers.__getitem__)
                totals = [
                    self.with_products(total, rows, codes, factor, scale, bias)
                    for total, rows in zip(totals, row_sets, strict=True)
                ]
            after.append(totals)
        return after

    def rows_of_x(self, chunk: Array, at: Array) -> list[_Group]:
        """A group of columns of x, for each set of four rows."""
        place, half = quotient_and_rest(chunk * (CHUNK // self.group) + at, GROUP // self.group)
        columns = pl.ds(half * self.group, self.group)
        layouts, interpreted = self.layouts.slice, self.tile.interpreted
        sets = []
        for i in range(self.x.sets):
            rows = pl.ds(i * ROWS, ROWS)
            parts = load(self.x.parts.at[rows, place, :, columns], layouts.x, interpreted=interpreted)
            largest = load(self.x.largest.at[rows, place], layouts.of_rows, interpreted=interpreted)
            total = sums_of_rows(parts, layouts, interpreted=interpreted)
            sets.append(_Group(parts, total, largest * (1 / LARGEST)))
        return sets

    def with_products(
        self, total: Array, rows: _Group, codes: Array, factor: int, scale: Array, bias: Array | None
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
