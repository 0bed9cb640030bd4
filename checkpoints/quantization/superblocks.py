"""Scales of sub-blocks as small multiples of one float16 of their block."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from checkpoints.quantization.scales import Rounding, as_half, inverse, ratio

NEIGHBOURS = (-1, 0, 1)
"""Rounding a scale to the nearest multiple is not always best: its neighbours are tried too."""


_NORMAL, _STEP = np.float32(2.0**-14), np.float32(2.0**-24)
"""The smallest normal float16, and the distance of those below it."""


def stored_unit(x: Float[np.ndarray, "blocks"]) -> Float[np.ndarray, "blocks"]:
    """As `as_half`; where float16 is coarse, away from zero, so that no multiple is out of reach."""
    steps = x / _STEP
    return as_half(np.where(np.abs(x) < _NORMAL, np.copysign(np.ceil(np.abs(steps)), x) * _STEP, x))


def unsigned_multiples(
    scales: Float[np.ndarray, "sub_blocks"], count: int, largest: int
) -> tuple[Float[np.ndarray, "sub_blocks"], Float[np.ndarray, "sub_blocks"]]:
    """Scales >= 0 as multiples 0 .. largest of their block's unit: the units, and the multiples.

    Args:
        scales: of all sub-blocks, `count` to a block.
        count, largest: see above.
    """
    unit = np.repeat(stored_unit(scales.reshape(-1, count).max(-1) / largest), count)
    return unit, np.clip(np.rint(ratio(scales, unit)), 0, largest)


def signed_multiples(
    scales: Float[np.ndarray, "sub_blocks"], count: int, lowest: int
) -> tuple[Float[np.ndarray, "sub_blocks"], Float[np.ndarray, "sub_blocks"]]:
    """As `unsigned_multiples`, from `lowest` to -lowest - 1; the scale of largest magnitude becomes the lowest."""
    by_block = scales.reshape(-1, count)
    extreme = np.take_along_axis(by_block, np.argmax(np.abs(by_block), axis=-1, keepdims=True), -1)
    unit = np.repeat(stored_unit(extreme[:, 0] / lowest), count)
    return unit, np.clip(np.rint(ratio(scales, unit)), lowest, -lowest - 1)


def best_neighbours(
    x: Float[np.ndarray, "n sub_blocks"],
    weights: Float[np.ndarray, "n sub_blocks"],
    nearest: Rounding,
    unit: Float[np.ndarray, "sub_blocks"],
    multiples: Float[np.ndarray, "sub_blocks"],
    lowest: int,
) -> Float[np.ndarray, "sub_blocks"]:
    """Multiples of `unit`, from `lowest` to -lowest - 1, that err least among those given and their neighbours."""
    best, chosen = np.full(unit.shape, np.inf, np.float32), multiples
    for step in NEIGHBOURS:
        tried = np.clip(multiples + step, lowest, -lowest - 1)
        scale = unit * tried
        residual = scale * nearest(x * inverse(scale)) - x
        error = (residual * residual * weights).sum(0)
        better = error < best
        best, chosen = np.where(better, error, best), np.where(better, tried, chosen)
    return chosen
