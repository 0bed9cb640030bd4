"""The tables of block formats that the native kernels are compiled with, as a C++ header.

`python -m pallas_kernels.matmul.native_tables` writes it; a test holds it to the formats.
"""

from __future__ import annotations

from pathlib import Path

from pallas_kernels.matmul.formats import FORMATS, IQ4_CODEBOOK, TQ3_CENTROIDS, TQ4_CENTROIDS, BlockFormat

HEADER = Path(__file__).parents[1] / "native" / "csrc" / "quant_matmul" / "formats.h"
CODEBOOKS = {IQ4_CODEBOOK: "kIq4", TQ3_CENTROIDS: "kTq3", TQ4_CENTROIDS: "kTq4"}
BYTE_OFFSET = 128
"""Of the bytes that a codebook's entries become."""


def header() -> str:
    """The text of the header file."""
    rows = "\n".join(map(_row, FORMATS.values()))
    tables = "\n".join(f"inline constexpr {_table(table, name)}" for table, name in CODEBOOKS.items())
    return f"""\
// Block formats. Written by `python -m pallas_kernels.matmul.native_tables`; do not edit.
#ifndef SPECJAX_QUANT_MATMUL_FORMATS_H_
#define SPECJAX_QUANT_MATMUL_FORMATS_H_

#include "quant_matmul/format.h"

namespace specjax {{

inline constexpr Format kFormats[] = {{
{rows}
}};

{tables}

}}  // namespace specjax

#endif  // SPECJAX_QUANT_MATMUL_FORMATS_H_
"""


def _row(kind: BlockFormat) -> str:
    low, high = (*kind.planes, 0)[:2]
    scales = "".join(part.capitalize() for part in kind.scales.split("_"))
    fields = [f'"{kind.name}"', kind.values, kind.num_bytes, low, high]
    fields += [kind.offset if kind.table is None else BYTE_OFFSET, f"Scales::k{scales}"]
    if kind.table is not None:
        fields.append(f"Codebook::{CODEBOOKS[kind.table]}")
    return f"    {{{', '.join(map(str, fields))}}},"


def _table(table: tuple[float, ...], name: str) -> str:
    if all(isinstance(entry, int) for entry in table):
        return f"int {name}Codebook[] = {{{', '.join(map(str, table))}}};"
    return f"float {name}Centroids[] = {{{', '.join(f'{entry}f' for entry in table)}}};"


if __name__ == "__main__":
    HEADER.write_text(header(), encoding="utf-8")
