"""How much an error in each value of a matrix counts while scales are searched.

With importance, the mean square of what a column is multiplied with, errors in the product are what counts; large
values count somewhat more than that says, and without importance more still. These are the rules of ggml
`src/ggml-quants.c`, found there by experiment. All in float64, where no square of a float32 under- or overflows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Importance = Float[np.ndarray, "K"] | None
"""How much an error in each column counts; None if nothing is known."""

Weigh = Callable[[Float[np.ndarray, "N K"], Importance], Float[np.ndarray, "N K"]]


def by_row(x: Float[np.ndarray, "N K"], importance: Importance) -> Float[np.ndarray, "N K"]:
    """The weights for Q4_0 to Q5_1. These formats search only with importance."""
    return (1 if importance is None else importance) * np.sqrt(_mean_square(x, x.shape[-1]) + _square(x))


def of_affine_k(x: Float[np.ndarray, "N K"], importance: Importance) -> Float[np.ndarray, "N K"]:
    """The weights for Q4_K and Q5_K."""
    if importance is None:
        return np.sqrt(_mean_square(x, 32)) + np.abs(x)
    return importance * np.sqrt(2 * _mean_square(x, 256) + _square(x))


def of_q6_k(x: Float[np.ndarray, "N K"], importance: Importance) -> Float[np.ndarray, "N K"]:
    """The weights for Q6_K: the importance alone, or the squares without it."""
    return _square(x) if importance is None else np.broadcast_to(importance.astype(np.float64), x.shape)


def of_iq4(block: int) -> Weigh:
    """The weights for IQ4_NL and IQ4_XS, whose blocks have 32 and 256 values."""

    def weigh(x: Float[np.ndarray, "N K"], importance: Importance) -> Float[np.ndarray, "N K"]:
        return _square(x) if importance is None else importance * np.sqrt(2 * _mean_square(x, block) + _square(x))

    return weigh


def all_alike(x: Float[np.ndarray, "N K"], importance: Importance) -> Float[np.ndarray, "N K"]:
    """The weights for the TQ formats. All are equal: each value of a rotated block is made of all 32 columns."""
    del importance
    return np.ones(x.shape)


def _square(x: np.ndarray) -> np.ndarray:
    return np.square(x, dtype=np.float64)


def _mean_square(x: np.ndarray, group: int) -> np.ndarray:
    """For every value the mean of the squares of its group of neighbours."""
    return np.repeat(np.mean(_square(x).reshape(-1, group), axis=-1), group).reshape(x.shape)
