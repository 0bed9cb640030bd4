"""Products of whole numbers of 8 bits on the tensor cores of NVIDIA GPUs, by instructions of a warp (mma.sync).

Such an instruction takes 16 rows of one factor and 8 columns of the other, and says which thread holds what. It does
not say where a thread has it from. So a thread reads some neighbouring columns of a plane, which are rows of the
matrix, in a quarter of the rows of a group, and puts its bytes in order by itself: nothing goes from thread to thread.

Pallas knows none of these steps. They are written in the terms of Mosaic GPU, register by register. Where a kernel is
interpreted, they are computed from the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.mosaic.gpu import FragmentedArray
from jax.experimental.mosaic.gpu import utils as mosaic
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector
from jaxlib.mlir.dialects import llvm
from jaxtyping import Int, Int8, UInt8, UInt32

ROWS = 4
"""Of x, in a product: each has two columns of its right factor."""


@dataclass(frozen=True)
class Layouts:
    """Which thread of a warpgroup has what.

    A thread has a place among eight in its warp, which says what columns it has, and a quarter: of the rows of a group,
    or a row of x.

    Attributes:
        own: neighbouring columns of a thread: 4, 8 or 16.
        group: rows of a plane that are multiplied together: 16 or 32.
    """

    own: int
    group: int

    @property
    def columns(self) -> int:
        """How many columns a warpgroup has."""
        return 32 * self.own

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
        """Of the columns that are rows of x [8, group]."""
        tiling = plgpu.Tiling(((2 * ROWS, self.group), (self.group // 4,)))
        return plgpu.Layout.TILED(tiling, warp_dims=(plgpu.Replicated(4),), lane_dims=(-3, -2), vector_dim=-1)

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


def read_once(ref: Any, layouts: Layouts, *, interpreted: bool) -> UInt8[Array, "group N"]:
    """A group of a plane in the GPU's memory, which is not needed again.

    The threads of a warp that read the same row of a plane take 32, 64 or 128 bytes of it. Memory gives 128 at a time
    (L2::128B), the rest of which another warp takes next.
    """
    if interpreted:
        return ref[...]
    group, columns = ref.shape

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=_like((group, columns), jnp.uint8, layouts.bytes))
    def read(_: Any, memory: Any) -> FragmentedArray:
        (pitch, _), _ = ir.MemRefType(memory.type).get_strides_and_offset()
        i64 = ir.IntegerType.get_signless(64)
        row, column = (
            arith.index_castui(i64, at) for at in next(iter(layouts.bytes.to_mgpu().thread_idxs((group, columns))))
        )
        start = llvm.ptrtoint(i64, mosaic.memref_ptr(memory))
        first = arith.addi(arith.addi(start, arith.muli(row, mosaic.c(pitch, i64))), column)
        vectors = {4: "u32", 8: "v2.u32", 16: "v4.u32"}[layouts.own]
        rows = [
            _assembly(
                f"ld.global.nc.L1::no_allocate.L2::128B.{vectors} {{out}}, [$in0 + {each * pitch}];",
                outs=layouts.own // 4,
                given=[first],
            )
            for each in range(group // 4)
        ]
        return _array((group, columns), layouts.bytes, rows, jnp.uint8)

    return read(ref)


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
    codes: UInt32[Array, "group/4 N"], x: Int8[Array, "8 group"], layouts: Layouts, *, interpreted: bool
) -> tuple[Int[Array, "4 N"], Int[Array, " 4"]]:
    """Rows of x times codes of 8 bits without a sign, four in a word; and the sum of each row of x.

    Args:
        codes: as `words_of` gives them.
        x: of each row 256ths, rounded, and what is left.
        layouts, interpreted: see the module.
    """
    columns = codes.shape[1]
    if interpreted:
        rows = 256 * x[::2].astype(jnp.int32) + x[1::2]
        whole = jnp.stack([codes >> shift & 255 for shift in (0, 8, 16, 24)], axis=1).reshape(-1, columns)
        return rows @ whole.astype(jnp.int32), jnp.sum(rows, axis=1)
    returned = _like((ROWS, columns), jnp.int32, layouts.sums), _like((ROWS,), jnp.int32, layouts.of_rows)

    @plgpu.inline_mgpu(arg_types=(layouts.words, layouts.x), return_type=returned)
    def multiply(_: Any, codes: FragmentedArray, x: FragmentedArray) -> tuple[FragmentedArray, FragmentedArray]:
        (register,) = x.registers.flat
        right = _words(register)
        quads = [_words(each) for each in codes.registers.flat]
        sums = []
        for first in range(0, layouts.own, 2):
            sums += _multiplied([quad[column] for quad in quads for column in (first, first + 1)], right)
        ones = _constant(0x01010101)
        total, _ = _multiplied([ones] * (2 * len(quads)), right)
        return (
            _array((ROWS, columns), layouts.sums, [sums], jnp.int32),
            _array((ROWS,), layouts.of_rows, [[total]], jnp.int32),
        )

    return multiply(codes, x)


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
    count = kind.shape[0] * ir.IntegerType(kind.element_type).width // 32
    words = vector.bitcast(ir.VectorType.get((count,), _word()), register)
    return [vector.extract(words, dynamic_position=[], static_position=[i]) for i in range(count)]


def _like(shape: tuple[int, ...], dtype: Any, layout: Any) -> Any:
    return plgpu.ShapeDtypeStruct(shape, dtype, layout=layout)


def _array(shape: tuple[int, ...], layout: Any, registers: Sequence[Sequence[Any]], dtype: Any) -> FragmentedArray:
    """An array from the words of its registers."""
    placed = layout.to_mgpu()
    bits = 8 * jnp.dtype(dtype).itemsize
    kind = placed.registers_element_type(ir.IntegerType.get_signless(bits))
    vectors = [
        vector.bitcast(kind, vector.from_elements(ir.VectorType.get((len(words),), _word()), words))
        for words in registers
    ]
    signed = bool(jnp.issubdtype(dtype, jnp.signedinteger))
    return FragmentedArray(
        _registers=np.array(vectors, dtype=object).reshape(placed.registers_shape(shape)),
        _layout=placed,
        _is_signed=signed,
    )
