"""Whether an outcome is what the law wants."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

AGREES = 1e-2
"""The largest difference at which results agree, see `largest_error`. Kernels may round to 16 bits."""
_PEAK = 16
"""A single number may be so many times as far off as the RMS of all."""


def numbers(tree: Any) -> list[np.ndarray]:
    """The arrays of floats in an outcome."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return [np.asarray(leaf, np.float32) for leaf in floats]


def largest_error(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest difference of arrays, relative to the RMS of what is wanted: by RMS, or a 16th of the peak.

    It is infinite where NaN and infinities are not in the same places.
    """
    return max((_error(g, w) for g, w in zip(got, want, strict=True)), default=0.0)


def _error(got: np.ndarray, want: np.ndarray) -> float:
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    off, size = np.abs(got[finite].astype(np.float64) - want[finite]), np.abs(want[finite].astype(np.float64))
    if not off.any():
        return 0.0
    scale = np.sqrt(np.mean(size**2))
    return float(max(np.sqrt(np.mean(off**2)), off.max() / _PEAK) / scale) if scale else float("inf")
