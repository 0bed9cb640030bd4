"""The frequencies of rotary positions; `specjax.state.rotation` applies them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


def rope_frequencies(theta: float, width: int) -> Float[np.ndarray, "width/2"]:
    """theta^(-2i/width) for the pairs i < width/2, radians per position."""
    return theta ** (-np.arange(width // 2, dtype=np.float32) * 2 / width)


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
