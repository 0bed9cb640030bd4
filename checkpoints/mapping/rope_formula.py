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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from checkpoints.family import Family

DIVISORS = "target.rope_factors"
"""The path of the parameter with the divisors in targets."""
FORMULA = "rope_formula"
"""Name of the field of a config that holds its `Llama3Rope`, if it is known."""
_CONTEXTS = tuple(1 << bits for bits in range(5, 24))
_RANGES = ((1.0, 4.0), (1.0, 32.0))
"""Low and high of Llama 3.1, and of Step-3.5 Flash."""
_FACTORS = (8.0, 32.0, 2.0, 4.0, 16.0, 64.0)


@dataclass(frozen=True)
class Llama3Rope:
    """The formula by which Llama 3 stretches rotary frequencies to contexts longer than those of training.

    Attributes:
        factor: divisor of the slowest frequencies.
        low_freq_factor, high_freq_factor: rotations within the original context below which a frequency is divided by
            `factor`, and above which it stays; in between it is interpolated.
        original_context: positions of the training.

    Source: `_compute_llama3_parameters` in transformers `modeling_rope_utils.py`; `Step35Model` in llama.cpp's
    `conversion/step3.py`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def factors(self, theta: float, width: int) -> tuple[float, ...]:
        """The divisor of each of the width / 2 frequencies."""

        def divisor(frequency: float) -> float:
            rotations = self.original_context * frequency / (2 * math.pi)
            blend = (rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            blend = min(max(blend, 0.0), 1.0)
            return 1 / ((1 - blend) / self.factor + blend)

        return tuple(divisor(theta ** (-2 * pair / width)) for pair in range(width // 2))


def with_formula(family: Family, config: Any, read: Callable[[str], np.ndarray]) -> Any:
    """The config, with the formula of its rotary divisors if it has some and they follow one.

    Args:
        family: of the model; its `rope` says which frequencies are divided.
        config: of the model.
        read: gives a parameter by its path.
    """
    if family.rope is None or not config.rope_factors or config.rope_formula:
        return config
    divisors = np.asarray(read(family.rope_divisors), np.float32)
    return replace(config, rope_formula=find_formula(divisors, *family.rope(config)))


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
