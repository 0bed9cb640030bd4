"""Comparing a converted model with its source: the parameters that both give, read by the loader's own rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from checkpoints.convert.plan import tensor_bytes
from checkpoints.convert.source_model import SourceModel, Stored
from checkpoints.mapping import Progress

_INTEGERS = ("I32", "I64")
_TOLERANCE = {"F32": (2.0**-22, 2.0**-22), "BF16": (2.0**-8, 1e-38), "F16": (2.0**-10, 2.0**-24)}
"""Relative and absolute error of rounding to a type; in F32, of computing there and back."""


@dataclass
class Comparison:
    """What was found.

    Attributes:
        equal: parameters of which no value differs.
        rounded: parameters that differ by no more than the rounding of the destination's type.
        wrong: parameters that differ by more, or are absent, each with what was found.
    """

    equal: int = 0
    rounded: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(source: SourceModel, written: SourceModel, progress: Progress | None = None) -> Comparison:
    """Compare two models, parameter by parameter."""
    found = Comparison()
    ours, theirs = source.opened.rules.shapes, written.opened.rules.shapes
    if source.opened.config != written.opened.config:
        found.wrong.append(f"config: {source.opened.config} became {written.opened.config}")
    found.wrong += [f"{path}: absent or of another shape" for path in ours.keys() ^ theirs.keys()]
    sizes = {path: tensor_bytes(source.type_of(path), shape) for path, shape in ours.items()}
    total, done = sum(sizes.values()), 0
    for path in ours.keys() & theirs.keys():
        before, after = source.parameter(path), written.parameter(path)
        same_bytes = before.type == after.type and np.array_equal(_bytes(before), _bytes(after))
        difference = "" if same_bytes else _difference(before, after)
        if difference == "":
            found.equal += 1
        elif difference is None:
            found.rounded += 1
        else:
            found.wrong.append(f"{path}: {difference}")
        done += sizes[path]
        if progress is not None:
            progress(done, total)
    return found


def _bytes(stored: Stored) -> np.ndarray:
    return np.ascontiguousarray(stored.array).reshape(-1).view(np.uint8)


def _difference(before: Stored, after: Stored) -> str | None:
    """What is wrong; nothing if the values are equal, None if they are no further apart than rounding takes them."""
    a, b = before.decoded(), after.decoded()
    if a.shape != b.shape:
        return f"shape {a.shape} became {b.shape}"
    coarser = max((before.type, after.type), key=lambda kind: _TOLERANCE.get(kind, (0.0, 0.0))[0])
    if after.type in _INTEGERS:
        return "" if np.array_equal(a, b) else "integers differ"
    relative, absolute = _TOLERANCE.get(coarser, (0.0, 0.0))
    worst, equal = 0.0, True
    for start in range(0, a.size, 1 << 20):
        x = np.asarray(a.reshape(-1)[start : start + (1 << 20)], np.float32)
        y = np.asarray(b.reshape(-1)[start : start + (1 << 20)], np.float32)
        excess = np.abs(x - y) - relative * np.abs(x) - absolute
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        equal = equal and bool(same.all())
        excess[same] = -1
        worst = max(worst, float(excess.max(initial=-1)) if not np.isnan(excess).any() else math.inf)
    if equal:
        return ""
    return None if worst <= 0 else f"values differ by {worst:.3g} more than {after.type} rounds"
