"""Invariants that the tables of a checkpoint show: types, declarations, and what the family adds."""

from __future__ import annotations

from collections import Counter

from checkpoints.errors import FormatError
from checkpoints.findings import Report
from checkpoints.gguf.values import value_of
from checkpoints.gguf.writer import FILE_TYPES, stays_f32
from checkpoints.load import OpenedCheckpoint
from checkpoints.mapping.table import INTEGERS


def check(opened: OpenedCheckpoint, report: Report) -> None:
    """Check the tables, and add what is wrong to the report."""
    if opened.format == "gguf":
        _vectors_are_f32(opened, report)
        _file_type_is_that_of_most(opened, report)
    if opened.family.check_tables is not None:
        opened.family.check_tables(opened.config, opened.metadata, opened.source.tensors, report)


def _vectors_are_f32(opened: OpenedCheckpoint, report: Report) -> None:
    used = {name for rule in opened.rules.rules for name in rule.sources}
    wrong = [
        f"{info.name} ({info.type})"
        for info in opened.source.tensors.values()
        if info.name in used and stays_f32(info.name, info.shape) and info.type not in ("F32", *INTEGERS)
    ]
    if wrong:
        report.note(
            f"{len(wrong)} small tensors are not F32: {_some(wrong)}",
            "llama.cpp stops at some of them; convert the original again, or this file through safetensors",
        )
    else:
        report.checked.append("vectors, convolution taps and routers are F32")


def _file_type_is_that_of_most(opened: OpenedCheckpoint, report: Report) -> None:
    try:
        says = value_of(opened.metadata, "general.file_type", int, str(opened.path), FormatError)
    except FormatError as error:
        report.note(str(error), "only displays are wrong; a quantizer that writes the key mends it")
        return
    named = {int(number): name for name, number in FILE_TYPES.items()}
    sizes: Counter[str] = Counter()
    for info in opened.source.tensors.values():
        sizes[info.type] += info.num_bytes
    if says in named and sizes and (most := sizes.most_common(1)[0][0]) != named[says]:
        report.note(
            f"general.file_type is {says} ({named[says]}), but most bytes are {most}",
            "only displays are wrong; a quantizer that writes the key mends it",
        )


def _some(names: list[str], count: int = 4) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
