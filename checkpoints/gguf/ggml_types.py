"""The tensor types of GGUF files: their names, their numbers in a file, and how many bytes hold how many values.

Types are those of the installed `gguf` package, and those that only forks of llama.cpp define, whose numbers its enum
lacks. Sources: ggml `include/ggml.h`; the public TurboQuant forks of llama.cpp for TQ3_1S and TQ4_1S.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import DTypeLike

from pallas_kernels.matmul import FORMATS

_CODES_OF_GGUF = frozenset(map(int, GGMLQuantizationType))
_OF_FORKS = {"TQ3_1S": 45, "TQ4_1S": 46}
OF_CACHES: Mapping[int, str] = {42: "TURBO2_0", 43: "TURBO3_0", 44: "TURBO4_0"}
"""Numbers that these forks give to types of KV caches."""


@dataclass(frozen=True)
class GGMLType:
    """A tensor type.

    Attributes:
        name: such as "F32", "Q4_K".
        code: its number in files.
        values, num_bytes: of a block; plain types have blocks of one value.
    """

    name: str
    code: int
    values: int
    num_bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of `width` values, which are a whole number of blocks."""
        return width // self.values * self.num_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor; the last axis is the fastest."""
        return math.prod(shape[:-1]) * self.row_bytes(shape[-1] if shape else 1)


GGML_TYPES: Mapping[str, GGMLType] = {
    kind.name: GGMLType(kind.name, int(kind), *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType
} | {
    name: GGMLType(name, code, FORMATS[name].values, FORMATS[name].num_bytes)
    for name, code in _OF_FORKS.items()
    if code not in _CODES_OF_GGUF
}
"""All known types by name."""

TYPE_OF_CODE: Mapping[int, GGMLType] = {kind.code: kind for kind in GGML_TYPES.values()}
"""All known types by their number in files."""

PLAIN_TYPES: Mapping[str, DTypeLike] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "I64": np.int64,
}
"""Types whose values NumPy knows."""

_PIECE = 2**14
"""Blocks that are decoded at once. All pieces have one shape, so that a type's decoder is compiled once."""


def decode_rows(raw: np.ndarray, kind: GGMLType) -> np.ndarray:
    """Values [R, K] of packed rows [R, bytes of a row] uint8, float32.

    Raises:
        NotImplementedError: the type is not of floating-point numbers, or nobody has written a decoder for it.
    """
    if kind.code in _CODES_OF_GGUF:
        with np.errstate(all="ignore"):  # damaged scales are infinite; what becomes of them is not for NumPy to say
            return quants.dequantize(raw, GGMLQuantizationType(kind.code))
    blocks = raw.reshape(-1, kind.num_bytes)
    values = np.empty((len(blocks), kind.values), np.float32)
    for begin in range(0, len(blocks), _PIECE):
        piece = blocks[begin : begin + _PIECE]
        padded = np.pad(piece, ((0, _PIECE - len(piece)), (0, 0)))
        values[begin : begin + _PIECE] = _decode(padded, kind.name)[: len(piece)]
    return values.reshape(len(raw), -1)


@functools.partial(jax.jit, static_argnames="name")
def _decode(blocks: jax.Array, name: str) -> jax.Array:
    return FORMATS[name].decode(blocks)


@functools.cache
def is_decodable(kind: GGMLType) -> bool:
    """Whether `decode_rows` can decode the type."""
    try:
        decode_rows(np.zeros((1, kind.num_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
