"""Parameters that are not read yet: whoever puts one on its devices reads the whole of it, or parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.mapping.digest import WeightDigest
from checkpoints.mapping.parts import Pieces, entries, part_of
from checkpoints.mapping.rule import Piece, Rule
from checkpoints.mapping.transforms import Shape
from checkpoints.source import TensorSource, aligned_empty


class Values(Protocol):
    """The values of a parameter: numbers, or rows of packed blocks [..., N, bytes of a row]."""

    def read(self) -> Any:
        """All of them, in an array that is contiguous."""
        ...

    def part(self, axis: int, length: int, pieces: Pieces) -> np.ndarray:
        """The pieces of one axis, contiguous.

        Args:
            axis: counted from the last one, as a negative number.
            length: of the axis in the whole, in values.
            pieces: what is wanted of it, in values.
        """
        ...


@dataclass(frozen=True)
class Given:
    """Values that are in memory already."""

    values: Any

    def read(self) -> Any:
        return self.values

    def part(self, axis: int, length: int, pieces: Pieces) -> np.ndarray:
        return part_of(self.values, axis, length, pieces)


@dataclass
class Reading:
    """The parameters of one rule.

    Attributes:
        rule: what becomes of the tensors.
        source: the open file.
        shapes: of the parameters, in their order.
        dtype: of the values; None reads packed rows.
        format: the block format of packed rows.
        digest: told of what is read.
    """

    rule: Rule
    source: TensorSource
    shapes: Sequence[Shape]
    dtype: DTypeLike | None
    format: str | None
    digest: WeightDigest

    @cached_property
    def whole(self) -> Mapping[str, np.ndarray]:
        """All parameters, read as wholes, once."""
        stored = self.rule.source_shapes(self.shapes)
        tensors = (self._read(Piece(name, {}), shape) for name, shape in zip(self.rule.sources, stored, strict=True))
        made = self.rule.forward(tensors)
        return {
            path: self._in_shape(array, shape)
            for path, array, shape in zip(self.rule.paths, made, self.shapes, strict=True)
        }

    def read(self, path: str) -> np.ndarray:
        """The whole of a parameter, in an array that is contiguous."""
        values = np.ascontiguousarray(self.whole[path])
        self.digest.add(path, values, self._kind)
        return values

    def part(self, path: str, axis: int, length: int, pieces: Pieces) -> np.ndarray:
        """A part of a parameter, see `Values`. Only this is read, if the rule can say where it stands."""
        number = self.rule.paths.index(path)
        shape = self.shapes[number]
        found = self._pieces(number, axis % len(shape), entries(pieces))
        if found is None:
            return part_of(self.read(path), axis, length, pieces)
        own = list(shape)
        own[axis] = sum(stop - start for start, stop in pieces)
        values = self._in_shape(self._joined(found), tuple(own))
        self.digest.add(path, values, self._kind, shape, (axis, pieces))
        return values

    def _pieces(self, number: int, axis: int, own: np.ndarray) -> Sequence[Piece] | None:
        """Where a part stands; None if the whole must be read: it is computed, or the tensor has other axes."""
        stored = zip(self.rule.sources, self.rule.source_shapes(self.shapes), strict=True)
        if any(self.source.tensors[name].shape != shape for name, shape in stored):
            return None
        return self.rule.pieces(number, axis, own, self.shapes)

    def _joined(self, pieces: Sequence[Piece]) -> np.ndarray:
        parts: Iterator[np.ndarray] = (self._ordered(piece) for piece in pieces)
        first = next(parts)
        if len(pieces) == 1:
            return first
        out = aligned_empty((len(pieces), *first.shape), first.dtype)
        out[0] = first
        for place, part in enumerate(parts, start=1):
            out[place] = part
        return out

    def _ordered(self, piece: Piece) -> np.ndarray:
        """Entries of a tensor, which files are asked for in ascending order, in the order in which they are wanted."""
        values = self._tensor(Piece(piece.source, {axis: np.sort(own) for axis, own in piece.only.items()}))
        for axis, own in piece.only.items():
            if np.any(np.diff(own) < 0):
                values = np.take(values, np.argsort(np.argsort(own)), axis)
        return values

    def _tensor(self, piece: Piece) -> np.ndarray:
        if self.dtype is None:
            return self.source.read_blocks(piece.source, piece.only)
        info = self.source.tensors[piece.source]
        last, unit = len(info.shape) - 1, GGML_TYPES[info.type].values if info.type in GGML_TYPES else 1
        own = piece.only.get(last)
        if own is None or unit == 1:
            return self.source.read(piece.source, self.dtype, piece.only)
        blocks = np.unique(own // unit)  # whole ones are read, and decoded
        found = (blocks[:, None] * unit + np.arange(unit)).reshape(-1)
        values = self.source.read(piece.source, self.dtype, {**piece.only, last: found})
        return values if len(found) == len(own) else np.take(values, np.searchsorted(found, own), axis=-1)

    def _read(self, piece: Piece, shape: Shape) -> np.ndarray:
        return self._in_shape(self._tensor(piece), shape)

    def _in_shape(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        return array.reshape((*shape[:-1], -1) if self.dtype is None else shape)

    @property
    def _kind(self) -> Any:
        return None if self.format is None else GGML_TYPES[self.format]


@dataclass(frozen=True)
class Unread:
    """One parameter of a rule."""

    reading: Reading
    path: str

    def read(self) -> np.ndarray:
        return self.reading.read(self.path)

    def part(self, axis: int, length: int, pieces: Pieces) -> np.ndarray:
        return self.reading.part(self.path, axis, length, pieces)
