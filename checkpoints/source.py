"""What every file format offers to the loader: a table of tensors, and a way to read one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

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
    """

    name: str
    shape: tuple[int, ...]
    type: str
    num_bytes: int


class TensorSource(Protocol):
    """A checkpoint whose tensors are read one at a time."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensor table."""
        ...

    def can_read(self, name: str) -> bool:
        """Whether the tensor's stored type can be converted to floating point."""
        ...

    def read(self, name: str, dtype: DTypeLike) -> np.ndarray:
        """The tensor as a fresh array of `dtype`; nothing of it is kept here."""
        ...

    def read_blocks(self, name: str) -> np.ndarray:
        """The bytes of a tensor of a block format, [..., N, bytes of a row] uint8; nothing of it is kept here."""
        ...


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """An uninitialised array that JAX can take over without copying it."""
    dtype = np.dtype(dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    buffer = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + num_bytes].view(dtype).reshape(shape)
