"""By what the weights of a model are known again, whatever file they come from and however they are kept in memory."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np

from checkpoints.gguf.ggml_types import GGMLType, decode_rows
from checkpoints.mapping.tree import is_matrix

_ROWS, _COLUMNS = 256, 256
"""What is looked at of a matrix. Columns are a multiple of the values of any block."""


class WeightDigest:
    """Collects samples of parameters while they are loaded; `str` of it is the digest of all.

    Vectors count as a whole. Of a matrix, or a stack of them, up to 256 rows count, evenly spaced, with 256 columns
    each, further to the right from row to row, which takes about a millisecond. Values of matrices are rounded
    to bfloat16, so that a file has one digest whether its matrices stay packed or become float32 or bfloat16. A change
    of a few rows alone may go unnoticed.
    """

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}

    def add(self, path: str, values: np.ndarray, kind: GGMLType | None = None) -> None:
        """Look at a parameter.

        Args:
            path: of the parameter.
            values: numbers; or packed rows [..., N, bytes of a row] uint8.
            kind: the type of packed rows.
        """
        shape = values.shape if kind is None else (*values.shape[:-1], values.shape[-1] // kind.num_bytes * kind.values)
        if is_matrix(path, shape) and not np.issubdtype(values.dtype, np.signedinteger):
            values = _sample(values.reshape(-1, values.shape[-1]), kind).astype(ml_dtypes.bfloat16)
        hashed = hashlib.blake2b(f"{path} {shape}".encode(), digest_size=16)
        hashed.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        self._parts[path] = hashed.digest()

    def __str__(self) -> str:
        return hashlib.blake2b(b"".join(part for _, part in sorted(self._parts.items())), digest_size=16).hexdigest()


def _sample(rows: np.ndarray, kind: GGMLType | None) -> np.ndarray:
    """Some rows and columns of a matrix, as numbers."""
    per_block, block_bytes = (1, 1) if kind is None else (kind.values, kind.num_bytes)
    chosen = np.unique(np.linspace(0, len(rows) - 1, _ROWS).astype(np.int64))
    width = rows.shape[1] // block_bytes * per_block
    taken = min(_COLUMNS, width)
    starts = np.minimum(np.arange(len(chosen)) * _COLUMNS % width // per_block * per_block, width - taken)
    columns = starts[:, None] // per_block * block_bytes + np.arange(taken // per_block * block_bytes)
    sample = rows[chosen[:, None], columns]
    return sample.astype(np.float32) if kind is None else decode_rows(sample, kind)
