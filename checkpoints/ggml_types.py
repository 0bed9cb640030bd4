"""The tensor types of GGUF files: their names, their numbers in a file, and how many bytes hold how many values.

Types are those of the installed `gguf` package, and those that only forks of llama.cpp define, whose numbers its enum
lacks. Sources: ggml `include/ggml.h`; the public TurboQuant forks of llama.cpp for TQ3_1S and TQ4_1S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pallas_kernels.quant_matmul import FORMATS

_OF_FORKS = {"TQ3_1S": 45, "TQ4_1S": 46}


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
    if code not in list(GGMLQuantizationType)
}
"""All known types by name."""

TYPE_OF_CODE: Mapping[int, GGMLType] = {kind.code: kind for kind in GGML_TYPES.values()}
"""All known types by their number in files."""
