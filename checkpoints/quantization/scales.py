"""Searches for the scales of quantized blocks: given values and weights, the scale whose rounding errs least.

Arrays have the values of a block along their first axis, [n, ...]: sums over a block are then sums of long rows, which
is what numpy does fast. All of it assumes magnitudes near one, which `blocks.columns` provides.

The idea, a grid of scales around the one that maps the largest magnitude to the outermost code, each followed by a
least-squares fit of the scale to its codes, is that of ggml `src/ggml-quants.c` (`make_qx_quants`, `make_qkx3_quants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float

Rounding = Callable[[np.ndarray], np.ndarray]
"""Maps numbers in units of the scale to the nearest code, as a float32 of that code's value."""


_NEGLIGIBLE = 1e-6
"""Of the sum of squares: differences in error below it are rounding. Blocks that are alike then get scales alike."""

_EXTRA_LEVELS = (*np.arange(-1, 1, 0.1, dtype=np.float32), 1, 1.3, 1.6, 2, 2.5, 3)
"""Steps by which the range of an affine block is cut off at its upper end, where values may count little."""

_SHIFTS = (0.5, 1, 1.5, 2, 3)
"""And at its lower end."""


def ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """over / under, 0 where `under` is 0."""
    return np.divide(over, under, out=np.zeros_like(over), where=under != 0)


def inverse(x: np.ndarray) -> np.ndarray:
    """1 / x, 0 where x is 0."""
    return ratio(np.ones_like(x), x)


def as_half(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """What float16 makes of x, in float32; what exceeds it becomes an infinity."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def to_integers(low: int, high: int) -> Rounding:
    """Rounding to the integers from `low` to `high`."""

    def nearest(x: np.ndarray) -> np.ndarray:
        rounded = np.rint(x)
        return np.clip(rounded, low, high, out=rounded)

    return nearest


def fit_scale(
    x: Float[np.ndarray, "n ..."],
    weights: Float[np.ndarray, "n ..."],
    nearest: Rounding,
    tries: Iterable[np.ndarray],
    refits: int = 4,
) -> Float[np.ndarray, "..."]:
    """The scale s with the least sum of weights * (x - s nearest(x / s))^2 among those tried.

    Args:
        x, weights: of the blocks.
        nearest: the codes.
        tries: reciprocals of the scales to begin with.
        refits: how often the codes are recomputed with the best scale and the scale fitted to them again.
    """
    weighted = weights * x
    energy = (weighted * x).sum(0)
    best, scale = np.zeros(x.shape[1:], np.float32), np.zeros(x.shape[1:], np.float32)

    def attempt(reciprocal: np.ndarray) -> None:
        codes = nearest(x * reciprocal)
        along, norm = (weighted * codes).sum(0), (codes * codes * weights).sum(0)
        fitted = ratio(along, norm)
        gain = fitted * along  # what the fit takes off the sum of weights * x^2
        better = gain > best + _NEGLIGIBLE * energy
        np.copyto(best, gain, where=better)
        np.copyto(scale, fitted, where=better)

    for reciprocal in tries:
        attempt(reciprocal)
    for _ in range(refits):
        attempt(inverse(scale))
    return scale


def outermost(x: Float[np.ndarray, "n ..."], codes: Iterable[float]) -> Iterable[np.ndarray]:
    """Reciprocal scales that take the value of largest magnitude to each of `codes`."""
    at = np.argmax(np.abs(x), axis=0)[None]
    reciprocal = inverse(np.take_along_axis(x, at, 0)[0])
    return (reciprocal * np.float32(code) for code in codes)


def fit_affine(
    x: Float[np.ndarray, "n ..."],
    weights: Float[np.ndarray, "n ..."],
    levels: int,
    *,
    any_offset: bool = False,
    refits: int = 4,
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Scale s >= 0 and offset o, so that s * (0 .. levels) + o is near x, weighted.

    Args:
        x, weights: of the blocks.
        levels: the largest code.
        any_offset: whether the offset may be positive; otherwise it is at most 0.
        refits: as in `fit_scale`.
    """
    low = x.min(0) if any_offset else np.minimum(x.min(0), 0)
    span = x.max(0) - low
    total, total_x, energy = weights.sum(0), (weights * x).sum(0), (weights * x * x).sum(0)
    scale, offset = span / levels, low.copy()
    best = np.full(span.shape, np.inf, np.float32)

    def attempt(reciprocal: np.ndarray, start: np.ndarray) -> None:
        codes = np.rint((x - start) * reciprocal)
        np.clip(codes, 0, levels, out=codes)
        weighted = weights * codes
        sum_c, sum_cc, sum_cx = weighted.sum(0), (weighted * codes).sum(0), (weighted * x).sum(0)
        spread = total * sum_cc - sum_c * sum_c
        spread[spread < 1e-5 * total * sum_cc] = 0  # all codes alike: what remains is rounding
        fitted = ratio(total * sum_cx - total_x * sum_c, spread)
        at = ratio(total_x - fitted * sum_c, total)
        if not any_offset:
            fitted = np.where(at > 0, ratio(sum_cx, sum_cc), fitted)
            at = np.minimum(at, 0)
        residual = fitted * codes + at - x
        error = (residual * residual * weights).sum(0)
        better = (error < best - _NEGLIGIBLE * energy) & (fitted >= 0)
        np.copyto(best, error, where=better)
        np.copyto(scale, fitted, where=better)
        np.copyto(offset, at, where=better)

    steps = inverse(span)
    for extra in _EXTRA_LEVELS:
        attempt(steps * (levels + extra), low)
    for shift in _SHIFTS:
        attempt(inverse(scale), low + shift * scale)
    for _ in range(refits):
        attempt(inverse(scale), offset)
    return scale, offset
