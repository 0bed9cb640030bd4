"""By what the weights of a model are known again, whatever file they come from and however they are kept in memory."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from checkpoints.gguf.ggml_types import GGMLType, decode_rows
from checkpoints.mapping.parts import Pieces, entries
from checkpoints.mapping.transforms import Shape
from checkpoints.mapping.tree import is_matrix

_ROWS, _COLUMNS = 256, 256
"""What is looked at of a matrix. Columns are a multiple of the values of any block."""

Cut = tuple[int, Pieces]
"""An axis, counted from the last one as a negative number, and what is there of it."""


class WeightDigest:
    """Collects samples of parameters while they are loaded; `str` of it is the digest of all.

    Vectors count as a whole. Of a matrix, or a stack of them, up to 256 rows count, evenly spaced, with 256 columns
    each, further to the right from row to row, which takes about a millisecond. Values of matrices are rounded
    to bfloat16, so that a file has one digest whether its matrices stay packed or become float32 or bfloat16. A change
    of a few rows alone may go unnoticed.

    Each sample adds a number of its own to a sum, so that parts of a parameter can be looked at by different processes:
    what they know is put together.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[int]]] = {}  # of each parameter, by what there was of it

    def add(
        self,
        path: str,
        values: np.ndarray,
        kind: GGMLType | None = None,
        shape: Shape | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Look at a parameter, or at a part of it.

        Args:
            path: of the parameter.
            values: numbers; or packed rows [..., N, bytes of a row] uint8.
            kind: the type of packed rows.
            shape: of the whole parameter; None: what is given is the whole.
            cut: which part is given; None for the whole.
        """
        if shape is None:
            last = values.shape[-1:] if kind is None else (values.shape[-1] // kind.num_bytes * kind.values,)
            shape = (*values.shape[:-1], *last)
        known = self._sums.setdefault(f"{path} {shape}", {})
        name = "whole" if cut is None else json.dumps(cut)
        if name in known:
            return
        if is_matrix(path, shape) and not np.issubdtype(values.dtype, np.signedinteger):
            sample, places = _sample(values, kind, shape, cut)
            sample = sample.astype(ml_dtypes.bfloat16)
        else:
            places = np.arange(int(np.prod(shape))).reshape(shape)
            places = places if cut is None else np.take(places, entries(cut[1]), axis=cut[0])
            sample = values
        bits = np.ascontiguousarray(sample).reshape(-1).view(f"u{sample.dtype.itemsize}").astype(np.uint64)
        places = places.reshape(-1)
        numbers = _numbers(1 << int(places.max(initial=0)).bit_length())
        known[name] = [int(np.sum(bits * lane[places])) for lane in numbers]

    def known(self) -> str:
        """What has been looked at, as text for other processes."""
        return json.dumps(self._sums)

    def learn(self, others: Sequence[str]) -> None:
        """Take in what other processes know."""
        for text in others:
            for parameter, sums in json.loads(text).items():
                self._sums.setdefault(parameter, {}).update(sums)

    def __str__(self) -> str:
        lines = (
            f"{parameter} {[sum(lane) % 2**64 for lane in zip(*sums.values(), strict=True)]}"
            for parameter, sums in sorted(self._sums.items())
        )
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _sample(values: np.ndarray, kind: GGMLType | None, shape: Shape, cut: Cut | None) -> tuple[np.ndarray, np.ndarray]:
    """Those of some rows and columns of a matrix that are given, as numbers, and their places among them."""
    per_block, block_bytes = (1, 1) if kind is None else (kind.values, kind.num_bytes)
    *lead, width = shape
    rows = np.unique(np.linspace(0, int(np.prod(lead)) - 1, _ROWS).astype(np.int64))
    taken = min(_COLUMNS, width)
    starts = np.minimum(np.arange(len(rows)) * _COLUMNS % width // per_block * per_block, width - taken)
    blocks = np.arange(taken // per_block)
    at = [np.broadcast_to(each[:, None], (len(rows), len(blocks))) for each in np.unravel_index(rows, lead)]
    at.append(starts[:, None] // per_block + blocks)
    places = np.arange(len(rows) * len(blocks)).reshape(at[0].shape)
    if cut is not None:
        axis, pieces = cut
        unit = per_block if axis == -1 else 1
        own = entries([(start // unit, stop // unit) for start, stop in pieces])
        local = np.full(shape[axis] // unit, -1)
        local[own] = np.arange(len(own))
        at[axis] = local[at[axis]]
        there = at[axis] >= 0
        at, places = [each[there] for each in at], places[there]
    units = values.reshape(*values.shape[:-1], -1, block_bytes) if kind is not None else values[..., None]
    sample = units[tuple(at)].reshape(-1, block_bytes)
    places = places.reshape(-1, 1) * per_block + np.arange(per_block)
    if kind is not None and sample.size:
        sample = decode_rows(sample.reshape(1, -1), kind)
    return sample.astype(np.float32), places


@functools.lru_cache(maxsize=4)
def _numbers(count: int) -> np.ndarray:
    """Two odd numbers of 64 bits for each of so many places, [2, count], which look like random ones: SplitMix64 of
    Steele et al., 2014.
    """
    x = (np.arange(2 * count, dtype=np.uint64) + np.uint64(1)).reshape(count, 2).T * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.ascontiguousarray((x ^ (x >> np.uint64(31))) | np.uint64(1))
