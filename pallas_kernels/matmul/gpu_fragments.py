"""Products of whole numbers of 8 bits on the tensor cores of NVIDIA GPUs, by instructions of a warp (mma.sync).

Such an instruction takes 16 rows of one factor and 8 columns of the other, and says which thread holds what. It does
not say where a thread has it from. So a thread reads some neighbouring columns of a plane, which are rows of the
matrix, in a quarter of the rows of a group, and puts its bytes in order by itself: nothing goes from thread to thread.

Pallas knows none of these steps. They are written in the terms of Mosaic GPU, register by register. Where a kernel is
interpreted, they are computed from the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector
from jaxtyping import Float, Int, Int8, UInt8, UInt32

from pallas_kernels.at_first_use import AtFirstUse
from pallas_kernels.mosaic_gpu import plgpu

if TYPE_CHECKING:
    from jax.experimental.mosaic.gpu import FragmentedArray, fragmented_array
    from jax.experimental.mosaic.gpu import utils as mosaic
    from jaxlib.mlir.dialects import llvm
else:
    fragmented_array = AtFirstUse("jax.experimental.mosaic.gpu.fragmented_array")
    mosaic = AtFirstUse("jax.experimental.mosaic.gpu.utils")
    llvm = AtFirstUse("jaxlib.mlir.dialects.llvm")

ROWS = 4
"""Of x, in a product: each has two columns of its right factor."""
SLICE = 128
"""Columns that are multiplied together. A thread has four of them. Of a tile of several slices a thread has some
neighbouring columns, which it reads at once: four for each slice."""


@dataclass(frozen=True)
class Layouts:
    """Which thread of a warpgroup has what.

    A thread has a place among eight in its warp, which says what columns it has, and a quarter: of the rows of a group,
    or a row of x.

    Attributes:
        own: neighbouring columns of a thread, of which each slice of a tile has four: 4, 8 or 16.
        group: rows of a plane that are multiplied together: 16 or 32.
    """

    own: int
    group: int

    @property
    def columns(self) -> int:
        """How many columns a warpgroup has."""
        return 32 * self.own

    @property
    def slices(self) -> int:
        """How many slices a tile has."""
        return self.columns // SLICE

    @property
    def slice(self) -> Layouts:
        """The layouts of a slice of the tile."""
        return replace(self, own=SLICE // 32)

    @property
    def bytes(self) -> Any:
        """Of a group of a plane [group, columns]."""
        return self._quartered(self.group)

    @property
    def words(self) -> Any:
        """Of a group whose bytes are put together, four rows in a word [group / 4, columns]."""
        # The four words of a group of 16 lie as sums of four rows do: one for each quarter.
        return self.sums if self.group == 16 else self._quartered(self.group // 4)

    @property
    def x(self) -> Any:
        """Of rows of x [4, 2, group], whose parts are the columns of a product."""
        tiling = plgpu.Tiling(((ROWS, 2, self.group), (self.group // 4,)))
        return plgpu.Layout.TILED(tiling, warp_dims=(plgpu.Replicated(4),), lane_dims=(-4, -3, -2), vector_dim=-1)

    @property
    def sums(self) -> Any:
        """Of sums [rows of x, columns]."""
        tiling = plgpu.Tiling(((ROWS, self.columns), (ROWS, 8 * self.own), (self.own,)))
        return plgpu.Layout.TILED(tiling, warp_dims=(-4,), lane_dims=(-2, -3), vector_dim=-1)

    @property
    def of_columns(self) -> Any:
        """Of numbers of the columns."""
        return self.sums.reduce(0)

    @property
    def of_rows(self) -> Any:
        """Of numbers of the rows of x."""
        return self.sums.reduce(1)

    def _quartered(self, rows: int) -> Any:
        tiling = plgpu.Tiling(((rows, self.columns), (rows, 8 * self.own), (rows // 4, self.own)))
        return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-3, -4), vector_dim=-1)


def slices_of(ref: Any, layouts: Layouts, *, once: bool, interpreted: bool) -> list[Array]:
    """A group of a plane [group, columns], or numbers of the columns, in the GPU's memory: in registers, by slices.

    The threads of a warp that read the same row take 32, 64 or 128 bytes of it. Memory gives 128 at a time (L2::128B),
    the rest of which another warp takes next.

    Args:
        ref: a reference to them.
        layouts: of the tile.
        once: whether they are not needed again.
        interpreted: see the module.
    """
    if interpreted:
        return [ref[..., first : first + SLICE] for first in range(0, layouts.columns, SLICE)]
    shape, dtype = ref.shape, jnp.dtype(ref.dtype)
    whole, part = (each.bytes if len(shape) == 2 else each.of_columns for each in (layouts, layouts.slice))
    like = _like((*shape[:-1], SLICE), dtype, part)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=(like,) * layouts.slices)
    def read(_: Any, memory: Any) -> tuple[FragmentedArray, ...]:
        strides, _ = ir.MemRefType(memory.type).get_strides_and_offset()
        i64 = ir.IntegerType.get_signless(64)
        place = [arith.index_castui(i64, at) for at in next(iter(whole.to_mgpu().thread_idxs(shape)))]
        start = llvm.ptrtoint(i64, mosaic.memref_ptr(memory))
        for at, stride in zip(place, strides, strict=True):
            start = arith.addi(start, arith.muli(at, mosaic.c(stride * dtype.itemsize, i64)))
        words = layouts.own * dtype.itemsize // 4
        rows = [
            _loaded(start, each * strides[0] * dtype.itemsize, words, once=once)
            for each in range(layouts.group // 4 if len(shape) == 2 else 1)
        ]
        own = words // layouts.slices
        return tuple(
            _array(like.shape, part, [row[first : first + own] for row in rows], dtype)
            for first in range(0, words, own)
        )

    return list(read(ref))


def side_by_side(slices: Sequence[Float[Array, "4 128"]], layouts: Layouts, *, interpreted: bool) -> Array:
    """Sums of the slices of a tile as sums of the tile [4, columns]."""
    if interpreted:
        return jnp.concatenate(slices, axis=-1)
    shape = ROWS, layouts.columns

    @plgpu.inline_mgpu(
        arg_types=(layouts.slice.sums,) * len(slices), return_type=_like(shape, jnp.float32, layouts.sums)
    )
    def joined(_: Any, *slices: FragmentedArray) -> FragmentedArray:
        return _array(
            shape, layouts.sums, [[word for each in slices for word in _words(each.registers.flat[0])]], jnp.float32
        )

    return joined(*slices)


def words_of(plane: UInt8[Array, "group N"], layouts: Layouts, *, interpreted: bool) -> UInt32[Array, "group/4 N"]:
    """Four bytes of a column, from rows that follow each other, as a word; the first is the lowest."""
    group, columns = plane.shape
    if interpreted:
        first, *others = jnp.moveaxis(plane.reshape(group // 4, 4, columns).astype(jnp.uint32), 1, 0)
        return first | others[0] << 8 | others[1] << 16 | others[2] << 24
    shape = (group // 4, columns)

    @plgpu.inline_mgpu(arg_types=(layouts.bytes,), return_type=_like(shape, jnp.uint32, layouts.words))
    def transpose(_: Any, plane: FragmentedArray) -> FragmentedArray:
        rows = [_words(register) for register in plane.registers.flat]
        quads: list[list[Any]] = []
        for first in range(0, len(rows), 4):
            quads.append([])
            for a, b, c, d in zip(*rows[first : first + 4], strict=True):
                for selector in (0x5140, 0x7362):  # the lower two bytes of each, the upper two
                    pairs = _permuted(a, b, selector), _permuted(c, d, selector)
                    quads[-1] += [_permuted(*pairs, 0x5410), _permuted(*pairs, 0x7632)]
        return _array(shape, layouts.words, quads, jnp.uint32)

    return transpose(plane)


def product(
    codes: UInt32[Array, "group/4 N"], x: Int8[Array, "4 2 group"], layouts: Layouts, *, interpreted: bool
) -> Int[Array, "4 N"]:
    """Rows of x times codes of 8 bits without a sign, four in a word.

    Args:
        codes: as `words_of` gives them.
        x: of each row 256ths, rounded, and what is left.
        layouts, interpreted: see the module.
    """
    columns = codes.shape[1]
    if interpreted:
        whole = jnp.stack([codes >> shift & 255 for shift in (0, 8, 16, 24)], axis=1).reshape(-1, columns)
        return _rows_of(x) @ whole.astype(jnp.int32)
    returned = _like((ROWS, columns), jnp.int32, layouts.sums)

    @plgpu.inline_mgpu(arg_types=(layouts.words, layouts.x), return_type=returned)
    def multiply(_: Any, codes: FragmentedArray, x: FragmentedArray) -> FragmentedArray:
        (register,) = x.registers.flat
        right = _words(register)
        quads = [_words(each) for each in codes.registers.flat]
        sums = []
        for first in range(0, layouts.own, 2):
            sums += _multiplied([quad[column] for quad in quads for column in (first, first + 1)], right)
        return _array((ROWS, columns), layouts.sums, [sums], jnp.int32)

    return multiply(codes, x)


def sums_of_rows(x: Int8[Array, "4 2 group"], layouts: Layouts, *, interpreted: bool) -> Int[Array, " 4"]:
    """The sum of each row of x: its product with ones."""
    if interpreted:
        return jnp.sum(_rows_of(x), axis=1)

    @plgpu.inline_mgpu(arg_types=(layouts.x,), return_type=_like((ROWS,), jnp.int32, layouts.of_rows))
    def add(_: Any, x: FragmentedArray) -> FragmentedArray:
        (register,) = x.registers.flat
        right = _words(register)
        total, _ = _multiplied([_constant(0x01010101)] * (2 * len(right)), right)
        return _array((ROWS,), layouts.of_rows, [[total]], jnp.int32)

    return add(x)


def _rows_of(x: Int8[Array, "4 2 group"]) -> Int[Array, "4 group"]:
    return 256 * x[:, 0].astype(jnp.int32) + x[:, 1]


def _multiplied(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """The sums of two columns for the row of x of this thread."""
    names = [f"$in{i}" for i in range(len(left) + len(right) + 1)]
    factors = ", ".join(names[: len(left)]), ", ".join(names[len(left) : -1]), ", ".join(names[-1:] * 4)
    braced = ", ".join(f"{{{each}}}" for each in factors)
    text = f"mma.sync.aligned.m16n8k{16 * len(right)}.row.col.s32.u8.s8.s32 {{out}}, {braced};"
    highs_and_lows = _assembly(text, outs=4, given=[*left, *right, _constant(0)])
    return [
        arith.addi(arith.muli(high, _constant(256)), low)
        for high, low in zip(highs_and_lows[::2], highs_and_lows[1::2], strict=True)
    ]


def _loaded(address: Any, offset: int, count: int, *, once: bool) -> list[Any]:
    """Words of memory that is only read: 4, 8 or 16 bytes at a time."""
    words, hints = [], "nc.L1::no_allocate.L2::128B" if once else "nc.L2::128B"
    for first in range(0, count, 4):
        size = min(count, 4)
        vectors = {1: "u32", 2: "v2.u32", 4: "v4.u32"}[size]
        text = f"ld.global.{hints}.{vectors} {{out}}, [$in0 + {offset + 4 * first}];"
        words += _assembly(text, outs=size, given=[address])
    return words


def _permuted(low: Any, high: Any, selector: int) -> Any:
    """Four of the eight bytes of two words, chosen by the digits of the selector, the last one first."""
    (word,) = _assembly("prmt.b32 {out}, $in0, $in1, $in2;", outs=1, given=[low, high, _constant(selector)])
    return word


def _assembly(text: str, *, outs: int, given: Sequence[Any]) -> list[Any]:
    """An instruction that gives some words; {out} stands for these, $in0 and so on for what it is given."""
    names = [f"${i}" for i in range(outs)]
    text = text.replace("{out}", names[0] if outs == 1 else f"{{{', '.join(names)}}}")
    for i in reversed(range(len(given))):
        text = text.replace(f"$in{i}", f"${outs + i}")
    kinds = ["l" if ir.IntegerType(each.type).width == 64 else "r" for each in given]
    kind = _word() if outs == 1 else llvm.StructType.get_literal([_word()] * outs)
    constraints = ",".join(["=r"] * outs + kinds)
    result: Any = llvm.inline_asm(kind, list(given), text, constraints, has_side_effects=False)
    return [result] if outs == 1 else [llvm.extractvalue(_word(), result, [i]) for i in range(outs)]


def _word() -> Any:
    return ir.IntegerType.get_signless(32)


def _constant(value: int) -> Any:
    return mosaic.c(value, _word())


def _words(register: Any) -> list[Any]:
    """What a register of bytes or words holds, as words."""
    kind = ir.VectorType(register.type)
    count = kind.shape[0] * mosaic.bitwidth(kind.element_type) // 32
    words = vector.bitcast(ir.VectorType.get((count,), _word()), register)
    return [vector.extract(words, dynamic_position=[], static_position=[i]) for i in range(count)]


def _like(shape: tuple[int, ...], dtype: Any, layout: Any) -> Any:
    return plgpu.ShapeDtypeStruct(shape, dtype, layout=layout)


def _array(shape: tuple[int, ...], layout: Any, registers: Sequence[Sequence[Any]], dtype: Any) -> FragmentedArray:
    """An array from the words of its registers."""
    placed = layout.to_mgpu()
    kind = placed.registers_element_type(mosaic.dtype_to_ir_type(jnp.dtype(dtype)))
    vectors = [
        vector.bitcast(kind, vector.from_elements(ir.VectorType.get((len(words),), _word()), words))
        for words in registers
    ]
    whole = jnp.issubdtype(dtype, jnp.integer)
    return fragmented_array.FragmentedArray(
        _registers=np.array(vectors, dtype=object).reshape(placed.registers_shape(shape)),
        _layout=placed,
        _is_signed=bool(jnp.issubdtype(dtype, jnp.signedinteger)) if whole else None,
    )
