"""What every file format offers to the loader: a table of tensors, and a way to read one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from checkpoints.errors import FormatError
from checkpoints.region import Region

_ALIGNMENT = 64
"""Bytes; arrays on this boundary are taken over by JAX's CPU backend without a copy."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as it lies in the file.

    Attributes:
        name: its name in the file.
        shape: row-major, slowest axis first (the reverse of GGUF's own order).
        type: the stored type's name, such as "F32", "BF16", "Q4_K".
        num_bytes: its size in the file.
        repeats: the name of another tensor with the same bytes, where somebody has looked.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    num_bytes: int
    repeats: str | None = None


Only = Mapping[int, np.ndarray]
"""Some entries of a tensor: for axes, counted from the front, which of their entries, ascending; of other axes all."""
ALL: Only = MappingProxyType({})


class TensorSource(Protocol):
    """A checkpoint whose tensors are read one at a time."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name, in the order of the file."""
        ...

    def can_read(self, name: str) -> bool:
        """Whether the tensor's stored type can be converted to floating point."""
        ...

    def read(self, name: str, dtype: DTypeLike, only: Only = ALL) -> np.ndarray:
        """The tensor, or some entries of it, as a fresh array of `dtype`; nothing of it is kept here."""
        ...

    def read_blocks(self, name: str, only: Only = ALL) -> np.ndarray:
        """The tensor's bytes as they lie in the file, [..., N, bytes of a row] uint8; nothing of it is kept here.

        Of the last axis, `only` names whole blocks by the values that they hold.
        """
        ...


@dataclass(frozen=True)
class FileRange:
    """Bytes of a file that are a tensor. They are read and not mapped: pages that were read once would count as memory
    in use. What lies between the entries of a region is not read.
    """

    path: Path
    offset: int
    num_bytes: int

    def read_into(self, out: np.ndarray, row_bytes: int, region: Region) -> None:
        """Fill a contiguous array with a region of the tensor, whose rows have so many bytes.

        Raises:
            FormatError: the file has become shorter.
        """
        rows = out.reshape(-1, region.width(row_bytes)) if out.size else out
        with self.path.open("rb", buffering=0) as file:
            self._fill(file, rows.view(np.uint8), slice(0, len(rows)), row_bytes, region)

    def steps(self, row_bytes: int, rows: int, region: Region) -> Iterator[tuple[slice, np.ndarray]]:
        """The region in portions of `rows` rows: which of its rows, and their bytes [rows, bytes] uint8.

        Raises:
            FormatError: the file has become shorter.
        """
        total = region.count(self.num_bytes // row_bytes if row_bytes else 0)
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, total, rows):
                portion = slice(start, min(start + rows, total))
                raw = np.empty((portion.stop - start, region.width(row_bytes)), np.uint8)
                self._fill(file, raw, portion, row_bytes, region)
                yield portion, raw

    def _fill(self, file: RawIOBase, out: np.ndarray, rows: slice, row_bytes: int, region: Region) -> None:
        for place, own, columns in region.stretches(rows, row_bytes):
            view = out[own, columns].reshape(-1).data
            file.seek(self.offset + place)
            while len(view):
                count = file.readinto(view)
                if not count:
                    raise FormatError(f"{self.path}: the file became shorter while it was read; open it again")
                view = view[count:]


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """An uninitialised array that JAX can take over without copying it."""
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes].view(dtype).reshape(shape)
