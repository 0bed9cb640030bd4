"""A quantized matrix, or a stack of them, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.matmul.formats import FORMATS, BlockFormat

Activations = Literal["a8", "a16"]
"""How native kernels round what the matrix is multiplied with: to 8 bits per value, as llama.cpp does, or to 16."""

BLOCKS = "blocks"
"""The layout of files: one part, [..., N, bytes of a row] uint8."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QTensor:
    """Weights [..., N, K] in a block format, where every other array of the project has floats.

    Attributes:
        parts: the packed arrays. Their leading axes are those of the stack; what follows depends on the layout.
        format: name of a `BlockFormat`.
        rows, width: N and K.
        layout: how `parts` are arranged: "blocks" as in files, or what a backend wants.
        act: how kernels of integers round the other factor.
    """

    parts: dict[str, Any]
    format: str = field(metadata={"static": True})
    rows: int = field(metadata={"static": True})
    width: int = field(metadata={"static": True})
    layout: str = field(default=BLOCKS, metadata={"static": True})
    act: Activations = field(default="a16", metadata={"static": True})

    @property
    def block_format(self) -> BlockFormat:
        """The format that says how to decode the bytes."""
        return FORMATS[self.format]

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., N, K], in values."""
        return (*next(iter(self.parts.values())).shape[:-2], self.rows, self.width)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many values it stands for."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        """Bytes that all parts take in memory."""
        return sum(part.nbytes for part in self.parts.values())

    def __getitem__(self, index: Any) -> QTensor:
        """Matrices of a stack; the index (an integer, traced or not) is that of the first axis."""
        if self.ndim < 3:
            raise IndexError(f"a QTensor {self.shape} is one matrix; only stacks can be indexed")
        return replace(self, parts={name: part[index] for name, part in self.parts.items()})

    def __repr__(self) -> str:
        return f"QTensor({self.format} {list(self.shape)}, {self.layout}, {self.act})"


def from_blocks(blocks: Array | np.ndarray, format: str, act: Activations = "a16") -> QTensor:
    """A QTensor of the bytes of a file.

    Args:
        blocks: [..., N, bytes of a row] uint8.
        format: name of a `BlockFormat`.
        act: see `QTensor`.

    Raises:
        ValueError: an unknown format or `act`, or bytes that do not make up whole blocks, one at least.
    """
    if format not in FORMATS:
        raise ValueError(f"format {format!r} cannot be computed with; known are {', '.join(FORMATS)}")
    if act not in get_args(Activations):
        raise ValueError(f"act is {act!r}; accepted: {', '.join(get_args(Activations))}")
    kind = FORMATS[format]
    if blocks.dtype != jnp.uint8 or blocks.ndim < 2 or blocks.shape[-1] % kind.num_bytes or 0 in blocks.shape:
        raise ValueError(
            f"blocks of {format} are uint8 [..., N, a multiple of {kind.num_bytes}], not empty; "
            f"got {blocks.dtype} {blocks.shape}"
        )
    width = blocks.shape[-1] // kind.num_bytes * kind.values
    return QTensor({BLOCKS: blocks}, format, blocks.shape[-2], width, BLOCKS, act)
