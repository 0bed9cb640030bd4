"""Comparing a converted model with its source: the parameters that both give, read by the loader's own rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkpoints.convert.plan import tensor_bytes
from checkpoints.convert.source_model import SourceModel, Stored
from checkpoints.families import Config
from checkpoints.mapping import Progress

_VALUES_PER_STEP = 1 << 18
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
    before, after = _numbers(source.opened.config), _numbers(written.opened.config)
    changed = [key for key in before if before[key] != after.get(key)]
    found.wrong += [f"config: {key}: {before[key]} became {after.get(key)}" for key in changed]
    found.wrong += [f"{path}: absent or of another shape" for path in ours.keys() ^ theirs.keys()]
    sizes = {path: tensor_bytes(source.type_of(path), shape) for path, shape in ours.items()}
    total, done = sum(sizes.values()), 0
    for path in ours.keys() & theirs.keys():
        ours_now, theirs_now = source.parameter(path), written.parameter(path)
        same = ours_now.type == theirs_now.type and np.array_equal(_bytes(ours_now), _bytes(theirs_now))
        moved = ours_now.type == theirs_now.type and source.is_moved(path) and written.is_moved(path)
        difference = "" if same else _difference(ours_now, theirs_now, exact=moved)
        if difference == "":
            found.equal += 1
        elif difference is None:
            found.rounded += 1
        else:
            found.wrong.append(f"{path}: {difference}")
        del ours_now, theirs_now  # not four arrays at once
        done += sizes[path]
        if progress is not None:
            progress(done, total)
    return found


def _numbers(config: Config) -> dict[str, Any]:
    """The config, without the formula of its rotary factors, which a GGUF does not have: they are a parameter."""
    return {name: value for name, value in asdict(config).items() if name != "rope_formula"}


def _bytes(stored: Stored) -> np.ndarray:
    return np.ascontiguousarray(stored.array).reshape(-1).view(np.uint8)


def _difference(before: Stored, after: Stored, *, exact: bool) -> str | None:
    """What is wrong; nothing if the values are equal, None if they are no further apart than rounding takes them."""
    if before.shape != after.shape:
        return f"shape {before.shape} became {after.shape}"
    relative, absolute = (0.0, 0.0) if exact else _TOLERANCE.get(after.type, (0.0, 0.0))
    worst, equal = 0.0, True
    for a, b in zip(_portions(before), _portions(after), strict=True):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        equal = equal and bool(same.all())
        excess = np.abs(a - b) - relative * np.abs(a) - absolute
        excess[same] = -1
        worst = max(worst, math.inf if np.isnan(excess).any() else float(excess.max(initial=-1)))
    if equal:
        return ""
    if not exact:
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
