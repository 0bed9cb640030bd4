"""Parts of an axis: what one of several devices has of a parameter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Pieces = Sequence[tuple[int, int]]
"""Stretches of an axis, (start, stop) one after the other."""


def entries(pieces: Pieces) -> np.ndarray:
    """The numbers of the entries in the pieces."""
    return np.concatenate([np.arange(*piece) for piece in pieces])


def scaled(pieces: Pieces, length: int, size: int) -> Pieces:
    """Pieces of an axis of some length, where the axis counts something else and has another size, such as bytes."""
    return [(start * size // length, stop * size // length) for start, stop in pieces]


def part_of(values: np.ndarray, axis: int, length: int, pieces: Pieces) -> np.ndarray:
    """The pieces of one axis of an array, contiguous.

    Args:
        values: the whole.
        axis: which is cut.
        length: what pieces count; the axis itself may count bytes instead.
        pieces: see `Pieces`.
    """
    own = entries(scaled(pieces, length, values.shape[axis]))
    return np.ascontiguousarray(np.take(values, own, axis=axis))
