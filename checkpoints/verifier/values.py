"""Invariants of the values: finite, not all zero, tied heads that are equal, and what the family demands."""

from __future__ import annotations

import re

import numpy as np

from checkpoints.convert.source_model import SourceModel
from checkpoints.errors import CheckpointError
from checkpoints.findings import Report
from checkpoints.load import OpenedCheckpoint
from checkpoints.mapping.table import Progress
from checkpoints.mapping.tree import is_matrix

_HEAD = "lm_head.weight"


def check(opened: OpenedCheckpoint, report: Report, progress: Progress | None = None) -> None:
    """Read every parameter, one at a time, and add what is wrong to the report."""
    model, source = SourceModel(opened), opened.source
    paths = [path for rule in opened.rules.rules if rule.sources for path in rule.paths]
    total, done = sum(info.num_bytes for info in model.sources_of(paths)), 0
    before = len(report.errors)
    for rule in opened.rules.rules:
        if not rule.sources:
            continue
        try:
            for path in rule.paths:
                _values(model, path, report)
            if not rule.paths:  # such as divisors that the config knows: reading compares
                rule.forward(source.read(name, np.float32) for name in rule.sources)
        except CheckpointError as error:
            report.error(str(error), "the file is damaged: download or convert it again")
        done += sum(source.tensors[name].num_bytes for name in rule.sources)
        if progress is not None:
            progress(min(done, total), total)
    _tied_head_is_equal(opened, report)
    if len(report.errors) == before:
        report.checked.append(f"all values of {len(paths)} parameters are finite, scales of packed blocks included")


def _values(model: SourceModel, path: str, report: Report) -> None:
    stored = model.parameter(path)
    names = ", ".join(info.name for info in model.sources_of([path])[:2])
    bad, zeros, count = 0, True, 0
    for portion in stored.portions():
        count += portion.size
        bad += int(portion.size - np.count_nonzero(np.isfinite(portion)))
        zeros = zeros and not portion.any()
    needed = (path not in model.opened.rules.integers and is_matrix(path, stored.shape)) or path.endswith("norm.weight")
    if bad:
        kind = "scales of blocks are not finite" if stored.packed else "values are not finite"
        report.error(
            f"{names} ({stored.type}): {kind}: {bad} of {count} values are infinite or no numbers",
            "the file is damaged or was quantized from a damaged one: download or convert it again",
        )
    elif zeros and needed and count > 1:
        report.error(
            f"{names}: every value is zero",
            "so look files whose download was interrupted after the space was reserved: download it again",
        )
    else:
        for check in model.opened.family.value_checks:
            if re.fullmatch(check.paths, path) and (wrong := check.wrong(stored.array)) is not None:
                report.error(f"{names}: {wrong}", check.fix)


def _tied_head_is_equal(opened: OpenedCheckpoint, report: Report) -> None:
    """A second copy of a tied table is ignored when the model is loaded; one that differs is a contradiction."""
    source, rules = opened.source, opened.rules.rules
    if _HEAD not in source.tensors or any(_HEAD in rule.sources for rule in rules):
        return
    embedding = next(rule.sources[0] for rule in rules if rule.paths and rule.paths[0].endswith(".embed.weight"))
    if np.array_equal(source.read_blocks(_HEAD), source.read_blocks(embedding)):
        report.checked.append(f"{_HEAD} repeats the tied embedding table")
    else:
        report.error(
            f"tie_word_embeddings is true, but {_HEAD} is not the embedding table",
            "set tie_word_embeddings to false if the head was trained apart; else remove it from the file",
        )
