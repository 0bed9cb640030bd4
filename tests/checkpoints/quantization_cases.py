"""Matrices to be quantized, benign and not, and the measure by which encoders are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np

from checkpoints.quantization.encode import ENCODERS
from pallas_kernels.matmul import FORMATS

ROWS, WIDTH = 8, 512
RULES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SEARCHED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


def _normal(seed: int) -> np.ndarray:
    """Nearly normal numbers out of integers: numpy promises those to stay the same from release to release."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.integers(-(1 << 16), 1 << 16, (12, ROWS, WIDTH)).sum(0) / (1 << 17)).astype(np.float32)


def _outliers(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[:, 7::64] *= 100
    return out


_PLAIN = 0.02 * _normal(0)
CASES = {
    "normal": _PLAIN,
    "heavy": (_PLAIN / np.maximum(np.abs(_normal(1)), 0.05)).astype(np.float32),
    "shifted": _PLAIN + np.float32(0.05),
    "outliers": _outliers(_PLAIN),
    "sparse": np.where(np.abs(_normal(2)) > 1.5, _PLAIN, np.float32(0)),
    "zeros": np.zeros((ROWS, WIDTH), np.float32),
    "equal": np.full((ROWS, WIDTH), 0.3, np.float32),
    "tiny": _PLAIN * np.float32(1e-4),
    "denormal": _PLAIN * np.float32(1e-38),
    "huge": _PLAIN * np.float32(1e5),
}
"""By name, float32 [ROWS, WIDTH]."""

IMPORTANCE = (np.abs(_normal(3)[0]) ** 3 + 1e-3).astype(np.float32)


def decoded(blocks: np.ndarray, name: str) -> np.ndarray:
    """Values of the bytes of some rows, float64."""
    values = _decoder(name)(blocks.reshape(len(blocks), -1, FORMATS[name].num_bytes))
    return np.asarray(values, np.float64).reshape(len(blocks), -1)


@functools.cache
def _decoder(name: str) -> Callable[[np.ndarray], jax.Array]:
    return jax.jit(FORMATS[name].decode)


def weighted_error(blocks: np.ndarray, x: np.ndarray, name: str, importance: np.ndarray | None) -> float:
    """The sum of squared errors, each as the format's search weighs it."""
    weights = ENCODERS[name].weigh(x, importance)
    return float(np.sum(weights * np.square(decoded(blocks, name) - x)))


def negligible_error(x: np.ndarray, name: str, importance: np.ndarray | None) -> float:
    """What float16 scales, with their eleven bits, may cost in a matrix that a format holds exactly otherwise."""
    return 2.0**-18 * float(np.sum(ENCODERS[name].weigh(x, importance) * np.square(x, dtype=np.float64)))
