"""Q4_K, Q5_K and Q6_K: blocks of 256 whose sub-blocks have small integer scales of their own.

Layouts: ggml `src/ggml-quants.c`. The search differs from the one there: after the float scales of the sub-blocks are
rounded to integers, the neighbouring integers are tried too, with the error that they really make.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, UInt8

from checkpoints.quantization.blocks import Encode, assembled, columns
from checkpoints.quantization.legacy import around
from checkpoints.quantization.scales import fit_affine, fit_scale, inverse, outermost, to_integers
from checkpoints.quantization.superblocks import NEIGHBOURS, best_neighbours, signed_multiples, unsigned_multiples
from pallas_kernels.matmul.formats import FORMATS

_LARGEST_6_BITS = 63


def affine(name: str) -> Encode:
    """Q4_K and Q5_K: eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum."""
    kind = FORMATS[name]
    levels = (1 << kind.codes.width) - 1

    def encode(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
        values, relative, largest = columns(x, weights, 32)
        scale, offset = fit_affine(values, relative, levels)
        units, scale = unsigned_multiples(scale * largest, 8, _LARGEST_6_BITS)
        minimum_units, minimum = unsigned_multiples(-offset * largest, 8, _LARGEST_6_BITS)
        unit, minimum_unit = units / largest, minimum_units / largest
        best = np.full(scale.shape, np.inf, np.float32)
        chosen, chosen_minimum, codes = scale, minimum, np.zeros(values.shape, np.float32)
        for step in NEIGHBOURS:
            for minimum_step in NEIGHBOURS:
                tried = np.clip(scale + step, 0, _LARGEST_6_BITS)
                tried_minimum = np.clip(minimum + minimum_step, 0, _LARGEST_6_BITS)
                at = minimum_unit * tried_minimum
                rounded = np.rint((values + at) * inverse(unit * tried))
                np.clip(rounded, 0, levels, out=rounded)
                residual = unit * tried * rounded - at - values
                error = (residual * residual * relative).sum(0)
                better = error < best
                best = np.where(better, error, best)
                chosen = np.where(better, tried, chosen)
                chosen_minimum = np.where(better, tried_minimum, chosen_minimum)
                np.copyto(codes, rounded, where=better)
        return assembled(kind, codes, [units, minimum_units], [chosen, chosen_minimum]).reshape(len(x), -1)

    return encode


def q6_k(x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"]) -> UInt8[np.ndarray, "N bytes"]:
    """Sixteen sub-blocks of 16, each with a signed 8-bit scale."""
    values, relative, largest = columns(x, weights, 16)
    nearest = to_integers(-32, 31)
    scale = fit_scale(values, relative, nearest, outermost(values, around(32)))
    units, multiples = signed_multiples(scale * largest, 16, -128)
    unit = units / largest
    multiples = best_neighbours(values, relative, nearest, unit, multiples, -128)
    codes = nearest(values * inverse(unit * multiples)) + 32
    return assembled(FORMATS["Q6_K"], codes, [units], [multiples]).reshape(len(x), -1)
