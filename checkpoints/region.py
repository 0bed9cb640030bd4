"""Some entries of a tensor, as bytes of a file: whole rows, or stretches of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

Span = tuple[int, int]


def runs_of(numbers: np.ndarray) -> Iterator[Span]:
    """Ascending numbers as stretches (start, stop) without gaps."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for run in np.split(numbers, breaks):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1


@dataclass(frozen=True)
class Region:
    """Rows of a tensor that is seen as a matrix, and what is wanted of each of them.

    Attributes:
        shape: of the entries, in values.
        rows: their numbers, ascending; None for all.
        spans: stretches of a row in bytes, ascending; None for whole rows.
    """

    shape: tuple[int, ...]
    rows: np.ndarray | None
    spans: tuple[Span, ...] | None

    @classmethod
    def of(cls, shape: tuple[int, ...], only: Mapping[int, np.ndarray], values: int, num_bytes: int) -> Region:
        """The region of some entries.

        Args:
            shape: of the tensor.
            only: which entries, ascending, for axes counted from the front; of other axes all.
            values, num_bytes: of a block of the tensor's type. The entries of the last axis are whole blocks.
        """
        chosen = tuple(only[axis] if axis in only else np.arange(size) for axis, size in enumerate(shape))
        last, lead = len(shape) - 1, shape[:-1]
        rows = spans = None
        if any(axis != last for axis in only):
            rows = np.ravel_multi_index(np.ix_(*chosen[:-1]), lead).reshape(-1)
        if last in only:
            spans = tuple(
                (start // values * num_bytes, stop // values * num_bytes) for start, stop in runs_of(chosen[last])
            )
        return cls(tuple(map(len, chosen)), rows, spans)

    def count(self, total: int) -> int:
        """How many rows it has, of so many in all."""
        return total if self.rows is None else len(self.rows)

    def width(self, row_bytes: int) -> int:
        """Bytes of each row that are wanted, of so many."""
        return row_bytes if self.spans is None else sum(stop - start for start, stop in self.spans)

    def stretches(self, rows: slice, row_bytes: int) -> Iterator[tuple[int, slice, slice]]:
        """What is to be read for some of its rows: byte of the tensor, rows of the result, and bytes of these."""
        numbers = np.arange(rows.start, rows.stop) if self.rows is None else self.rows[rows]
        if self.spans is None:
            done = 0
            for start, stop in runs_of(numbers):
                yield start * row_bytes, slice(done, done + stop - start), slice(0, row_bytes)
                done += stop - start
            return
        for place, number in enumerate(numbers.tolist()):
            done = 0
            for start, stop in self.spans:
                yield number * row_bytes + start, slice(place, place + 1), slice(done, done + stop - start)
                done += stop - start
