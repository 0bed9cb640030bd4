"""Rotary position embedding over the first dimensions of a head, in half-split pairs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def rope_frequencies(theta: float, width: int) -> Float[np.ndarray, "width/2"]:
    """theta^(-2i/width) for the pairs i < width/2, radians per position."""
    return theta ** (-np.arange(width // 2, dtype=np.float32) * 2 / width)


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
