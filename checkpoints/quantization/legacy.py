"""Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1: blocks of 32 with one scale, and an offset in the formats ending in 1.

Without importance these formats are exact rules, and the gguf package follows them byte by byte. With it, all but Q8_0
search for the scale that errs least. Source: ggml `src/ggml-quants.c` (`quantize_row_q4_0_impl` and its siblings).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType, quants
from jaxtyping import Float, UInt8

from checkpoints.quantization.blocks import Encode, assembled, columns
from checkpoints.quantization.scales import as_half, fit_affine, fit_scale, outermost, ratio, to_integers
from pallas_kernels.matmul.formats import FORMATS

VALUES = 32


def by_rule(name: str) -> Callable[[Float[np.ndarray, "N K"]], UInt8[np.ndarray, "N bytes"]]:
    """The exact rule of a format."""
    kind = GGMLQuantizationType[name]

    def encode(x: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
        # Negative zeros are made positive: the gguf package lets their sign pass on to the scale, which ggml does not.
        # Scales of denormals have reciprocals that overflow; they are stored as 0, and any codes will do.
        return quants.quantize(x + np.float32(0), kind)

    return encode


def symmetric(name: str) -> Encode:
    """Q4_0 and Q5_0 with importance."""
    kind = FORMATS[name]
    middle = kind.codes.offset
    nearest = to_integers(-middle, middle - 1)

    def encode(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
        values, relative, largest = columns(x, weights, VALUES)
        scale = fit_scale(values, relative, nearest, outermost(values, around(middle)))
        scale = as_half(scale * largest)
        codes = nearest(values * ratio(largest, scale)) + middle
        return assembled(kind, codes, [scale]).reshape(len(x), -1)

    return encode


def affine(name: str) -> Encode:
    """Q4_1 and Q5_1 with importance."""
    kind = FORMATS[name]
    levels = (1 << kind.codes.width) - 1
    nearest = to_integers(0, levels)

    def encode(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
        values, relative, largest = columns(x, weights, VALUES)
        scale, offset = fit_affine(values, relative, levels, any_offset=True)
        scale, offset = as_half(scale * largest), as_half(offset * largest)
        codes = nearest((values - offset / largest) * ratio(largest, scale))
        return assembled(kind, codes, [scale, offset]).reshape(len(x), -1)

    return encode


def around(middle: int) -> np.ndarray:
    """Codes near the lowest, -middle, and near the highest: where the value of largest magnitude may go."""
    steps = np.arange(-0.9, 0.95, 0.1, dtype=np.float32)
    return np.concatenate([-(middle + steps), middle - 1 + steps])
