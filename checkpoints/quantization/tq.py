"""TQ3_1S and TQ4_1S: blocks of 32, rotated, with the centroids of a normal distribution and a scale for each half.

Layouts, constants and the search as in the public TurboQuant forks of llama.cpp.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, UInt8

from checkpoints.quantization.blocks import Encode, columns
from checkpoints.quantization.scales import as_half, fit_scale, inverse, ratio
from pallas_kernels.matmul.formats import FORMATS, tq_rotation

_STARTS = np.arange(0.6, 1.55, 0.1, dtype=np.float32)
_REFITS = 6


def tq(name: str) -> Encode:
    """TQ3_1S with eight centroids, TQ4_1S with sixteen."""
    kind = FORMATS[name]
    table = np.array(kind.table, np.float32)
    middles = (table[1:] + table[:-1]) / 2
    rotation = tq_rotation().T

    def indices(x: Float[np.ndarray, "16 halves"]) -> UInt8[np.ndarray, "16 halves"]:
        index = np.zeros(x.shape, np.uint8)
        for middle in middles:
            index += x >= middle
        return index

    def encode(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
        largest = np.max(np.abs(x.reshape(-1, 32)), axis=-1, keepdims=True)
        largest[largest == 0] = 1
        rotated = (x.reshape(-1, 32) / largest) @ rotation
        values, relative, half_largest = columns(rotated, weights, 16)
        rms = np.sqrt(np.mean(values * values, axis=0))
        tries = (inverse(rms * start) for start in _STARTS)
        scale = fit_scale(values, relative, lambda y: np.take(table, indices(y)), tries, refits=_REFITS)
        stored = as_half((scale * half_largest).reshape(-1, 2) * largest)
        codes = indices(values * ratio(half_largest, (stored / largest).reshape(-1)))
        return kind.assemble(codes.T.reshape(-1, 32), stored).reshape(len(x), -1)

    return encode
