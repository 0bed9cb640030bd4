"""Rotary position embedding over the first `width` dimensions of a head ("partial", half-split pairs)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def apply_rope(
    x: Float[Array, "B T heads N"], positions: Int[Array, "B T"], *, theta: float, width: int
) -> Float[Array, "B T heads N"]:
    """Rotate dimension pairs (i, i + width/2), i < width/2, by position * theta^(-2i/width); the rest pass through.

    Interleaved M-RoPE of Qwen3.5 assigns each pair to one of three position streams; for text the streams are equal
    and it is exactly this rotation.

    Source: Su et al., "RoFormer", arXiv 2104.09864.
    """
    half = width // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) * 2 / width)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
    first = x[..., :half].astype(jnp.float32)
    second = x[..., half:width].astype(jnp.float32)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., width:]], axis=-1)
