"""Rotary position embedding over the first dimensions of a head, in half-split pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


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


def apply_rope(
    x: Float[Array, "B T heads N"], positions: Int[Array, "B T"], frequencies: Float[Array | np.ndarray, "pairs"]
) -> Float[Array, "B T heads N"]:
    """Rotate dimension pairs (i, i + pairs) by position * frequency i; dimensions from 2 * pairs on pass through.

    Interleaved M-RoPE of Qwen3.5 assigns each pair to one of three position streams; for text the streams are equal
    and it is exactly this rotation.

    Source: Su et al., "RoFormer", arXiv 2104.09864.
    """
    half = len(frequencies)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
    first = x[..., :half].astype(jnp.float32)
    second = x[..., half : 2 * half].astype(jnp.float32)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., 2 * half :]], axis=-1)
