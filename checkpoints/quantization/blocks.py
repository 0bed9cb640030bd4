"""Rows of a matrix as the columns that the searches for scales work on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, UInt8

Encode = Callable[[Float[np.ndarray, "N K"], Float[np.ndarray, "N K"]], UInt8[np.ndarray, "N bytes"]]
"""Encodes finite float32 rows of whole blocks, given how much an error in each value counts."""


def columns(
    x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"], values: int
) -> tuple[Float[np.ndarray, "values blocks"], Float[np.ndarray, "values blocks"], Float[np.ndarray, "blocks"]]:
    """Blocks as columns: values over the block's largest magnitude, their weights over the largest weight, and the
    magnitudes. A block of zeros is divided by 1; one whose weights are all 0 gets weights of 1."""
    blocks, block_weights = x.reshape(-1, values), weights.reshape(-1, values)
    largest = np.max(np.abs(blocks), axis=-1)
    largest[largest == 0] = 1
    heaviest = np.max(block_weights, axis=-1, keepdims=True)
    relative = np.divide(block_weights, heaviest, out=np.ones(blocks.shape), where=heaviest > 0)
    return np.ascontiguousarray((blocks / largest[:, None]).T), np.ascontiguousarray(relative.T, np.float32), largest
