"""Float matrices into the bytes of block formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from checkpoints.errors import CheckpointError
from checkpoints.gguf.ggml_types import GGML_TYPES, PLAIN_TYPES, GGMLType, decode_rows
from checkpoints.quantization import iq4, k_quants, legacy, weights
from checkpoints.quantization.blocks import Encode
from checkpoints.quantization.tq import tq
from checkpoints.quantization.weights import Importance, Weigh
from pallas_kernels.matmul.formats import FORMATS

CHUNK_VALUES = 1 << 16
"""Values that a thread encodes at a time: few enough for a core's cache."""

_PLAIN = ("F32", "F16", "BF16")


class EncodingError(CheckpointError):
    """Values that a format cannot hold."""


@dataclass(frozen=True)
class Encoder:
    """How a format is written.

    Attributes:
        search: the function that looks for scales; None if the format is an exact rule, importance or not.
        weigh: how much an error in each value counts in the search.
        rule: the exact rule that takes the place of the search when there is no importance, if there is one.
    """

    search: Encode | None
    weigh: Weigh
    rule: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, x: Float[np.ndarray, "N K"], importance: Importance) -> UInt8[np.ndarray, "N bytes"]:
        """Encode rows of finite float32 values into the bytes of blocks."""
        if self.rule is not None and (importance is None or self.search is None):
            return self.rule(x)
        assert self.search is not None
        return self.search(x, self.weigh(x, importance))


ENCODERS: Mapping[str, Encoder] = {
    "Q8_0": Encoder(None, weights.all_alike, legacy.by_rule("Q8_0")),
    "Q4_0": Encoder(legacy.symmetric("Q4_0"), weights.by_row, legacy.by_rule("Q4_0")),
    "Q4_1": Encoder(legacy.affine("Q4_1"), weights.by_row, legacy.by_rule("Q4_1")),
    "Q5_0": Encoder(legacy.symmetric("Q5_0"), weights.by_row, legacy.by_rule("Q5_0")),
    "Q5_1": Encoder(legacy.affine("Q5_1"), weights.by_row, legacy.by_rule("Q5_1")),
    "Q4_K": Encoder(k_quants.affine("Q4_K"), weights.of_affine_k),
    "Q5_K": Encoder(k_quants.affine("Q5_K"), weights.of_affine_k),
    "Q6_K": Encoder(k_quants.q6_k, weights.of_q6_k),
    "IQ4_NL": Encoder(iq4.iq4_nl, weights.of_iq4(32)),
    "IQ4_XS": Encoder(iq4.iq4_xs, weights.of_iq4(256)),
    "TQ3_1S": Encoder(tq("TQ3_1S"), weights.all_alike),
    "TQ4_1S": Encoder(tq("TQ4_1S"), weights.all_alike),
}
"""The formats that can be written, by name."""

IMPORTANCE_MATTERS = frozenset(name for name, encoder in ENCODERS.items() if encoder.weigh is not weights.all_alike)
"""Those whose bytes depend on importance."""


def encode(
    values: np.ndarray,
    format: str,
    importance: Float[np.ndarray, "... K"] | None = None,
    *,
    name: str = "values",
    packed: GGMLType | None = None,
) -> UInt8[np.ndarray, "... N bytes"]:
    """Encode a matrix, or a stack of them.

    Args:
        values: [..., N, K] of a floating-point type, or packed rows [..., N, bytes] uint8.
        format: one of `ENCODERS`; K is a whole number of its blocks. Or a floating-point type.
        importance: how much an error in each column counts: the mean square of what the column is multiplied with; for
            a stack one row per matrix. None counts values by rules of the format's own.
        name: of the tensor, for messages.
        packed: the type of packed rows.

    Raises:
        EncodingError: an unknown format, rows that are no whole number of blocks, importance of another shape or that
            is negative or not finite, or values that are not finite or too large for the format's float16 scales.
    """
    if format not in (*ENCODERS, *_PLAIN):
        accepted = ", ".join((*ENCODERS, *_PLAIN))
        raise EncodingError(f"{name}: {format!r} cannot be written; formats that can are {accepted}")
    kind, lead = GGML_TYPES[format], values.shape[:-1]
    width = values.shape[-1] if packed is None else values.shape[-1] // packed.num_bytes * packed.values
    if width % kind.values:
        raise EncodingError(f"{name}: rows of {width} values; {format} comes in blocks of {kind.values}")
    if importance is not None:
        importance = _checked(importance, (*lead[:-1], width), name)
    rows = values.reshape(-1, values.shape[-1])
    by_row = None if importance is None else importance.reshape(-1, width)
    per_matrix = len(rows) if by_row is None else len(rows) // len(by_row)
    out = np.empty((len(rows), kind.row_bytes(width)), np.uint8)
    step = max(1, CHUNK_VALUES // width)
    starts = [
        (start, min(start + step, end))
        for first in range(0, len(rows), max(1, per_matrix))
        for end in [first + per_matrix]
        for start in range(first, end, step)
    ]

    def one(part: tuple[int, int]) -> None:
        start, stop = part
        chunk = np.ascontiguousarray(rows[start:stop] if packed is None else decode_rows(rows[start:stop], packed))
        chunk = chunk.astype(np.float32, copy=False)
        _check_finite(chunk, start, name)
        with np.errstate(all="ignore"):  # scales beyond float16 are infinite here, and found below
            if format in _PLAIN:
                out[start:stop] = chunk.astype(PLAIN_TYPES[format]).view(np.uint8)
            else:
                out[start:stop] = ENCODERS[format](chunk, None if by_row is None else by_row[start // per_matrix])
        _check_halves(out[start:stop], format, start, name)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(one, starts):
            pass
    return out.reshape(*lead, -1)


def _checked(importance: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    if importance.shape != shape:
        raise EncodingError(f"{name}: importance has the shape {importance.shape}; {shape} is needed")
    if not (np.isfinite(importance) & (importance >= 0)).all():
        raise EncodingError(f"{name}: importance must be finite and not negative; it is {importance.min()} at least")
    return importance


def _check_finite(chunk: Float[np.ndarray, "N K"], start: int, name: str) -> None:
    finite = np.isfinite(chunk)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise EncodingError(
            f"{name}: the value at row {start + row}, column {column} is {chunk[row, column]}; a matrix with infinities"
            " or NaNs cannot be quantized, and the model it comes from is damaged"
        )


def _check_halves(rows: UInt8[np.ndarray, "N bytes"], format: str, start: int, name: str) -> None:
    kind = GGML_TYPES[format]
    blocks = rows.reshape(len(rows), -1, kind.num_bytes)
    first, count = 0, int(format == "F16")
    if format in FORMATS:
        first, count = FORMATS[format].first_half, FORMATS[format].halves
    finite = np.isfinite(np.ascontiguousarray(blocks[..., first : first + 2 * count]).view("<f2"))
    if not finite.all():
        row, block, _ = np.argwhere(~finite)[0]
        raise EncodingError(
            f"{name}: the values at row {start + row} from column {block * kind.values} on are too large for the"
            f" float16 numbers of {format}; keep this tensor as F32 or BF16"
        )
