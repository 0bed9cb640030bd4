"""The formula behind rotary divisors of which a GGUF has the numbers alone, for config.json, which states it.

A divisor is 1 / ((1 - s) / factor + s) with s = (r - low) / (high - low) between 0 and 1, where r = context x frequency
/ 2 pi counts rotations (see `Llama3Rope`). So 1 / divisor is `1 / factor` on a plateau of slow frequencies, and in
between linear in the frequency: plateau and line are read off the numbers. Low, high and context are determined but for
a common multiple; models have low = 1, or a context that is a power of two. What is found counts only if it gives the
very numbers again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Float32

from checkpoints.families import Config
from specjax.models.dense import DenseConfig, Llama3Rope
from specjax.models.step3_5 import Step35Config

DIVISORS = "target.rope_factors"
"""Path of the parameter."""
_CONTEXTS = tuple(1 << bits for bits in range(5, 24))
_RANGES = ((1.0, 4.0), (1.0, 32.0))
"""Low and high of Llama 3.1, and of Step-3.5 Flash."""
_FACTORS = (8.0, 32.0, 2.0, 4.0, 16.0, 64.0)


def with_formula(config: Config, read: Callable[[str], np.ndarray]) -> Config:
    """The config, with the formula of its rotary divisors if it has some and they follow one.

    Args:
        config: of the model.
        read: gives a parameter by its path.
    """
    if not isinstance(config, (DenseConfig, Step35Config)) or not config.rope_factors or config.rope_formula:
        return config
    divisors = np.asarray(read(DIVISORS), np.float32)
    if isinstance(config, DenseConfig):
        return replace(config, rope_formula=find_formula(divisors, config.rope_theta, config.head_width))
    return replace(config, rope_formula=find_formula(divisors, config.full.rope_theta, config.full.rope_width))


def find_formula(divisors: Float32[np.ndarray, "N/2"], theta: float, width: int) -> Llama3Rope | None:
    """The formula that gives these divisors, bit by bit; None if none is found.

    Args:
        divisors: one for each frequency, the fastest first.
        theta, width: base and N of the frequencies.
    """
    frequencies = theta ** (-np.arange(0, width, 2) / width)
    if not (np.isfinite(divisors).all() and (divisors >= 1).all()):
        return None
    for formula in _candidates(divisors.astype(np.float64), frequencies):
        if any(np.array_equal(made, divisors) for made in _as_computed(formula, theta, width)):
            return formula
    return None


def _candidates(divisors: Float[np.ndarray, "pairs"], frequencies: Float[np.ndarray, "pairs"]) -> Iterator[Llama3Rope]:
    """Formulas in the order in which they are likely: known ones, then the line through the numbers."""
    for factor in dict.fromkeys((float(divisors.max()), *_FACTORS)):
        if factor == 1:
            continue
        for low, high in _RANGES:
            for context in _CONTEXTS:
                yield Llama3Rope(factor, low, high, context)
        between = (divisors > 1) & (divisors < factor)
        if np.count_nonzero(between) < 2:
            continue
        share = (1 / divisors[between] - 1 / factor) / (1 - 1 / factor)
        slope, start = np.polyfit(frequencies[between], share, 1)
        if slope <= 0 or start >= 0:
            continue
        per_low = 2 * math.pi * slope / -start  # context / low
        for context in (round(per_low), *_CONTEXTS):
            low = context / per_low
            for digits in (2, 4, 6):
                rounded = [float(f"{x:.{digits}g}") for x in (low, low * (1 - 1 / start))]
                if context > 0 and rounded[0] < rounded[1]:
                    yield Llama3Rope(factor, rounded[0], rounded[1], context)


def _as_computed(formula: Llama3Rope, theta: float, width: int) -> Iterator[Float32[np.ndarray, "pairs"]]:
    """The divisors as writers of files compute them, which round at different places."""
    yield np.array(formula.factors(theta, width), np.float32)
    frequencies = 1 / (theta ** (np.arange(0, width, 2) / width)).astype(np.float32)
    # llama.cpp's `conversion/step3.py` has the frequencies alone in float32, its `conversion/llama.py` everything;
    # PyTorch, there, divides a number by a tensor by multiplying with the reciprocal.
    yield _divisors(formula, frequencies.astype(np.float64), lambda number, x: number / x).astype(np.float32)
    yield _divisors(formula, frequencies, lambda number, x: number * (1 / x))


def _divisors(
    formula: Llama3Rope, frequencies: np.ndarray, over: Callable[[float, np.ndarray], np.ndarray]
) -> np.ndarray:
    """The formula in the type of the frequencies; `over` divides a number by an array."""
    low, high, context = formula.low_freq_factor, formula.high_freq_factor, formula.original_context
    lengths = over(2 * math.pi, frequencies)
    share = (over(context, lengths) - low) / (high - low)
    between = 1 / ((1 - share) / formula.factor + share)
    kept, slow = lengths < context / high, lengths > context / low
    return np.where(kept, 1, np.where(slow, formula.factor, between)).astype(frequencies.dtype)
