"""What the native kernels are compiled with of the formats' descriptions, as C++ headers.

`python -m pallas_kernels.native_tables` writes them; a test holds them to the formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from pallas_kernels import kv_formats
from pallas_kernels.kv_formats import KVFormat
from pallas_kernels.matmul.bits import Bits, Integers
from pallas_kernels.matmul.formats import (
    FORMATS,
    IQ4_CODEBOOK,
    TQ3_CENTROIDS,
    TQ4_CENTROIDS,
    TQ_SIGNS,
    BlockFormat,
)
from pallas_kernels.native.sources import SOURCES

CODEBOOKS = {IQ4_CODEBOOK: "kIq4", TQ3_CENTROIDS: "kTq3", TQ4_CENTROIDS: "kTq4"}
BYTE_OFFSET = 128
"""Of the bytes that a codebook's entries become."""
TABLE = 16
"""Entries of a look-up of the attention kernels; shorter tables are repeated."""
TABLE_LEVELS = 2**12 - 1
"""The integer that the largest of a table's centroids becomes there."""
WIDE = 256
"""A width of vectors whose groups are as large as they get."""


def headers() -> dict[Path, str]:
    """The text of each header file."""
    blocks = [_rows("Format kFormats[]", map(_format, FORMATS.values()))]
    blocks += [_table(table, name) for table, name in CODEBOOKS.items()]
    blocks += [f"inline constexpr int kTqSigns[] = {_braced(TQ_SIGNS)};"]
    types = [_rows("KvType kKvTypes[]", map(_kv_type, kv_formats.FORMATS.values()))]
    return {
        SOURCES / "quant_matmul/formats.h": _header("quant_matmul/format.h", "QUANT_MATMUL_FORMATS", blocks),
        SOURCES / "attention/formats.h": _header("attention/types.h", "ATTENTION_FORMATS", types),
    }


def _header(includes: str, guard: str, parts: Iterable[str]) -> str:
    text = "\n\n".join(parts)
    return f"""\
// Written by `python -m pallas_kernels.native_tables`; do not edit.
#ifndef SPECJAX_{guard}_H_
#define SPECJAX_{guard}_H_

#include "{includes}"

namespace specjax {{

{text}

}}  // namespace specjax

#endif  // SPECJAX_{guard}_H_
"""


def _rows(name: str, rows: Iterable[str]) -> str:
    return f"inline constexpr {name} = {{\n" + "".join(f"    {row},\n" for row in rows) + "};"


def _braced(values: Iterable[object]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _format(kind: BlockFormat) -> str:
    low, high = (*kind.planes, 0)[:2]
    scales = "".join(part.capitalize() for part in kind.scales.split("_"))
    offset, book = (kind.codes.offset, "kNone") if kind.table is None else (BYTE_OFFSET, CODEBOOKS[kind.table])
    meaning = f"{low}, {high}, {offset}, Scales::k{scales}, Codebook::{book}"
    first, *others = [_integers(integers) for integers in (kind.codes, *kind.byte_scales)]
    places = f"{kind.first_half},\n     {first},\n     {{{(',' + chr(10) + '      ').join(others)}}}"
    return f'{{"{kind.name}", {kind.values}, {kind.num_bytes}, {meaning}, {places}}}'


def _integers(integers: Integers) -> str:
    return _braced((integers.count, integers.offset, _braced(_bits(bits, integers) for bits in integers.bits)))


def _bits(bits: Bits, of: Integers) -> str:
    where = (bits.at, bits.width, bits.run, bits.to, bits.first, of.extent(bits))
    return _braced((*where, bits.shifts.start, len(bits.shifts), bits.word, bits.flipped))


def _table(table: tuple[float, ...], name: str) -> str:
    if all(isinstance(entry, int) for entry in table):
        return f"inline constexpr int {name}Codebook[] = {_braced(table)};"
    return f"inline constexpr float {name}Centroids[] = {_braced(map(_float, table))};"


def _kv_type(kind: KVFormat) -> str:
    if not kind.quantized:
        name = {"f32": "kF32", "f16": "kF16", "bf16": "kBf16"}[kind.name]
        return f'{{"{kind.name}", KvKind::{name}, {kind.bits}}}'
    group = kind.group(WIDE)
    if kind.bits == 8:
        return f'{{"{kind.name}", KvKind::kBytes, 8, 1.0f, false, {_levels(128, group)}, {_levels(128)}}}'
    values = np.asarray(kind.unscaled(jnp.arange(1 << kind.bits), 1))
    by_variance = np.any(values != np.asarray(kind.unscaled(jnp.arange(1 << kind.bits), 4)))
    unit = np.abs(values).max() / TABLE_LEVELS if by_variance else 1.0
    table = np.rint(np.resize(values, TABLE) / unit).astype(int)
    largest = np.abs(table).max()
    meaning = f"{_float(unit)}, {str(by_variance).lower()}, {_levels(largest, group)}, {_levels(largest)}"
    return f'{{"{kind.name}", KvKind::kTable, {kind.bits}, {meaning}, {_braced(table)}}}'


def _levels(largest: int, products: int = 32) -> int:
    """The largest integer of 16 bits of which so many products with codes can be added in 32 bits."""
    return min(2**15 - 1, (2**31 - 1) // (products * int(largest)))


def _float(value: float) -> str:
    return f"{np.float32(value)!s}f"


if __name__ == "__main__":
    for path, text in headers().items():
        path.write_text(text, encoding="utf-8")
