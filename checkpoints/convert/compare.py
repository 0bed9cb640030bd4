"""Comparing a converted model with its source. The loader's rules read the parameters of both.

One parameter of each model is in memory at a time, and nothing else of that size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkpoints.convert.plan import tensor_bytes
from checkpoints.convert.source_model import SourceModel, Stored
from checkpoints.family import Config
from checkpoints.mapping.rope_formula import FORMULA
from checkpoints.mapping.table import Progress

_VALUES_PER_STEP = 1 << 18
_BYTES_PER_STEP = 1 << 20
_TOLERANCE = {"F32": (2.0**-22, 2.0**-22), "BF16": (2.0**-8, 1e-38), "F16": (2.0**-10, 2.0**-24)}
"""Relative and absolute error of rounding to a type; in F32, of computing there and back."""
_COMPUTED = (2.0**-16, 0.0)
"""The same of what one side computes from its config: formulas are rounded at other places elsewhere."""


@dataclass
class Comparison:
    """The result of a comparison.

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
    before, after = _numbers(source.opened.config), _numbers(written.opened.config)
    changed = [key for key in before if before[key] != after.get(key)]
    found.wrong += [f"config: {key}: {before[key]} became {after.get(key)}" for key in changed]
    found.wrong += [f"{path}: absent or of another shape" for path in ours.keys() ^ theirs.keys()]
    sizes = {path: tensor_bytes(source.type_of(path), shape) for path, shape in ours.items()}
    total, done = sum(sizes.values()), 0
    # In the order of the rules, which may read several parameters at once.
    for path in [path for rule in source.opened.rules.rules for path in rule.paths if path in theirs]:
        difference = _compare(path, source, written)
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


def _numbers(config: Config) -> dict[str, Any]:
    """The config, without the formula of its rotary factors, which a GGUF does not have: they are a parameter."""
    return {name: value for name, value in asdict(config).items() if name != FORMULA}


def _compare(path: str, source: SourceModel, written: SourceModel) -> str | None:
    """Compare one parameter of the two models; returns what `_difference` returns."""
    exact = source.type_of(path) == written.type_of(path) and source.is_moved(path) and written.is_moved(path)
    written.forget_all_but(path)  # not three parameters at once
    before, after = source.parameter(path), written.parameter(path)
    tolerance = (0.0, 0.0) if exact else _TOLERANCE.get(after.type, (0.0, 0.0))
    if not (source.sources_of([path]) and written.sources_of([path])):
        tolerance = _COMPUTED
    if before.type == after.type and before.shape == after.shape and _same_bytes(before.array, after.array):
        return ""
    return _difference(before, after, tolerance)


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one shape are equal, bit by bit; no array of their size is made."""
    if a.nbytes <= _BYTES_PER_STEP:
        return a.tobytes() == b.tobytes()
    if len(a) == 1:
        return _same_bytes(a[0], b[0])
    step = max(1, _BYTES_PER_STEP * len(a) // a.nbytes)
    return all(_same_bytes(a[i : i + step], b[i : i + step]) for i in range(0, len(a), step))


def _difference(before: Stored, after: Stored, tolerance: tuple[float, float]) -> str | None:
    """What is wrong; nothing if the values are equal, None if they are no further apart than rounding takes them."""
    if before.shape != after.shape:
        return f"shape {before.shape} became {after.shape}"
    relative, absolute = tolerance
    worst, equal = 0.0, True
    for a, b in zip(_portions(before), _portions(after), strict=True):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        equal = equal and bool(same.all())
        excess = np.abs(a - b) - relative * np.abs(a) - absolute
        excess[same] = -1
        worst = max(worst, math.inf if np.isnan(excess).any() else float(excess.max(initial=-1)))
    if equal:
        return ""
    if any(tolerance):
        return None if worst <= 0 else f"values differ by {worst:.3g} more than {after.type} rounds"
    return f"values differ by {worst:.3g}, and none should"


def _portions(stored: Stored) -> Iterator[np.ndarray]:
    """Values as float64, which holds those of every type, in portions of a size that does not depend on the type."""
    rest = np.empty(0)
    for portion in stored.portions():
        rest = np.concatenate([rest, np.asarray(portion, np.float64)])
        while len(rest) >= _VALUES_PER_STEP:
            yield rest[:_VALUES_PER_STEP]
            rest = rest[_VALUES_PER_STEP:]
    yield rest
