"""Two states that should be equal: which parts of them differ, where, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from specjax.state import Content

Path = tuple[str, ...]
"""The name of a `Content`."""


@dataclass(frozen=True)
class Deviation:
    """A part of a state that is not what it should be.

    Attributes:
        path: where it is, such as ("layer 3", "keys").
        positions: of the tokens whose rows are off, ascending.
        to_the_end: whether all rows from the first of these on are off.
        slot: where the first of them stands; None if there are no slots.
        heads, num_heads: which heads of the first row are off, and how many there are; None if a row has none.
        error: root mean square of the first row's error, over that of all rows; for token ids, 1.
        limit: the most that rounding explains.
        likely: what seems to have happened, as a clause; empty if nothing is recognised.
    """

    path: Path
    positions: tuple[int, ...]
    to_the_end: bool
    slot: int | None
    heads: tuple[int, ...] | None
    num_heads: int | None
    error: float
    limit: float
    likely: str = ""

    @property
    def name(self) -> str:
        """The path as words, from the outside in."""
        return " ".join(self.path)

    @property
    def where(self) -> str:
        """The place within the part, in words."""
        first, *more = self.positions
        if not more and self.slot is None:
            place = f"after position {first}"
        elif not more:
            place = f"at position {first}"
        elif self.to_the_end:
            place = f"from position {first} on ({len(self.positions)} positions)"
        else:
            shown = ", ".join(map(str, self.positions[:4])) + (", ..." if len(self.positions) > 4 else "")
            place = f"at positions {shown} ({len(self.positions)} in all)"
        if self.slot is not None:
            place += f", slot {self.slot}"
        if self.heads is not None and len(self.heads) == self.num_heads:
            place += ", in all heads" if self.num_heads != 1 else ""
        elif self.heads is not None:
            place += f", in head{'s' if len(self.heads) > 1 else ''} {', '.join(map(str, self.heads))}"
            place += f" of {self.num_heads}"
        return place

    def __str__(self) -> str:
        return (
            f"{self.name}: wrong {self.where}, by {self.error:.2g} of its size (rounding: at most {self.limit:.1g})"
            + (f"; {self.likely}" if self.likely else "")
        )


def rows_of_both(got: Content, want: Content) -> tuple[Shaped[np.ndarray, "n *row"], Shaped[np.ndarray, "n *row"]]:
    """The rows of the positions that both have."""
    _, ours, theirs = np.intersect1d(got.positions, want.positions, return_indices=True)
    return got.rows[ours], want.rows[theirs]


def errors(got: Shaped[np.ndarray, "n *row"], want: Shaped[np.ndarray, "n *row"]) -> Float[np.ndarray, "n"]:
    """For each row the root mean square of the difference over that of all wanted rows; what is no number is infinite.

    Integers are right or wrong, by 1.
    """
    if not len(want):
        return np.zeros(0)
    count = len(want)
    if want.dtype.kind in "iub":
        return np.any((got != want).reshape(count, -1), axis=1).astype(np.float64)
    got, want = got.astype(np.float64).reshape(count, -1), want.astype(np.float64).reshape(count, -1)
    scale = float(np.sqrt(np.mean(want**2)))
    error = np.sqrt(np.mean((got - want) ** 2, axis=1)) / (scale or 1.0)
    return np.where(np.isfinite(error), error, np.inf)


def largest_errors(got: Sequence[Content], want: Sequence[Content]) -> dict[Path, float]:
    """The largest error of each part that both have."""
    others = {content.path: content for content in want}
    found = {}
    for content in got:
        if content.path in others:
            ours, theirs = rows_of_both(content, others[content.path])
            found[content.path] = float(errors(ours, theirs).max(initial=0.0))
    return found


def deviations(got: Sequence[Content], want: Sequence[Content], limits: Mapping[Path, float]) -> list[Deviation]:
    """The parts that differ by more than their limits, layer by layer, and in a layer what sums up all tokens first."""
    others = {content.path: content for content in want}
    layers = list(dict.fromkeys(content.path[:-1] for content in got))
    found = []
    for content in got:
        if content.path in others:
            deviation = _deviation(content, others[content.path], limits[content.path])
            if deviation is not None:
                found.append((layers.index(content.path[:-1]), not content.sums, deviation.positions[0], deviation))
    return [each for *_, each in sorted(found, key=lambda each: each[:3])]


def _deviation(got: Content, want: Content, limit: float) -> Deviation | None:
    positions, ours, _ = np.intersect1d(got.positions, want.positions, return_indices=True)
    rows, wanted = rows_of_both(got, want)
    error = errors(rows, wanted)
    wrong = np.flatnonzero(error > limit)
    if not len(wrong):
        return None
    first, heads, num_heads = int(wrong[0]), None, None
    if got.has_heads:
        scale = float(np.sqrt(np.mean(wanted.astype(np.float64) ** 2))) or 1.0
        num_heads = rows.shape[1]
        each = np.sqrt(np.mean((rows[first] - wanted[first]).reshape(num_heads, -1) ** 2, axis=1)) / scale
        heads = tuple(np.flatnonzero(~(each <= limit)).tolist()) or tuple(range(num_heads))
    return Deviation(
        got.path,
        tuple(positions[wrong].tolist()),
        len(wrong) == len(positions) - first and len(wrong) > 1,
        None if got.slots is None else int(got.slots[ours[first]]),
        heads,
        num_heads,
        float(error[first]),
        limit,
    )
