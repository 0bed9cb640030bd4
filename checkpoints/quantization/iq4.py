"""IQ4_NL and IQ4_XS: four-bit indices into a fixed uneven codebook; blocks of 32, or of 256 with 6-bit scales.

Layouts and codebook: ggml `src/ggml-quants.c` (`quantize_row_iq4_nl_impl`).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, UInt8

from checkpoints.quantization.blocks import assembled, columns
from checkpoints.quantization.scales import as_half, fit_scale, inverse, outermost
from checkpoints.quantization.superblocks import best_neighbours, signed_multiples
from pallas_kernels.matmul.formats import FORMATS, IQ4_CODEBOOK

_CODEBOOK = np.array(IQ4_CODEBOOK, np.float32)
# The middles between neighbouring entries are multiples of 1/2, so a table over those finds the nearest entry.
_NEAREST = np.searchsorted((_CODEBOOK[1:] + _CODEBOOK[:-1]) / 2, np.arange(-256, 256) / 2, side="right")
_NEAREST_VALUE = _CODEBOOK[_NEAREST]
_LAST = len(_NEAREST) - 1
_ENDS = np.concatenate([end + np.arange(-7, 8) for end in (_CODEBOOK[0], _CODEBOOK[-1])])
"""Where in the codebook's range the value of largest magnitude may go."""


def _places(x: Float[np.ndarray, "..."]) -> np.ndarray:
    place = np.nan_to_num(np.floor(x * 2))
    return np.clip(place + 256, 0, _LAST, out=place).astype(np.intp)


def _nearest_value(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.take(_NEAREST_VALUE, _places(x))


def _fit(
    values: Float[np.ndarray, "32 blocks"], weights: Float[np.ndarray, "32 blocks"]
) -> Float[np.ndarray, "blocks"]:
    return fit_scale(values, weights, _nearest_value, outermost(values, _ENDS))


def _codes(values: Float[np.ndarray, "32 blocks"], scale: Float[np.ndarray, "blocks"]) -> Int[np.ndarray, "32 blocks"]:
    return np.take(_NEAREST, _places(values * inverse(scale)))


def iq4_nl(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
    """Encode rows in blocks of 32 values with one float16 scale each."""
    values, relative, largest = columns(x, weights, 32)
    scale = as_half(_fit(values, relative) * largest)
    return assembled(FORMATS["IQ4_NL"], _codes(values, scale / largest), [scale]).reshape(len(x), -1)


def iq4_xs(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
    """Blocks of 256: eight sub-blocks, each with a scale from -32 to 31; neighbouring scales are tried too."""
    values, relative, largest = columns(x, weights, 32)
    unit, multiples = signed_multiples(_fit(values, relative) * largest, 8, -32)
    own = unit / largest
    multiples = best_neighbours(values, relative, _nearest_value, own, multiples, -32)
    codes = _codes(values, own * multiples)
    return assembled(FORMATS["IQ4_XS"], codes, [unit], [multiples]).reshape(len(x), -1)
