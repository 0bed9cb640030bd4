"""Rotary positions: how a key or a query is turned by where it stands."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def apply_rope(
    x: Float[Array, "B T heads N"],
    positions: Int[Array, "B T"],
    frequencies: Float[Array | np.ndarray, "*rows pairs"],
) -> Float[Array, "B T heads N"]:
    """Rotate dimension pairs (i, i + pairs) by position * frequency i; dimensions from 2 * pairs on pass through.

    `frequencies` are those of every row, or [B, 1, pairs] for rows that differ.

    Interleaved M-RoPE of Qwen3.5 assigns each pair to one of three position streams; for text the streams are equal
    and it is exactly this rotation.

    Source: Su et al., "RoFormer", arXiv 2104.09864.
    """
    half = frequencies.shape[-1]
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
    first = x[..., :half].astype(jnp.float32)
    second = x[..., half : 2 * half].astype(jnp.float32)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., 2 * half :]], axis=-1)
