"""Which key head a value head reads."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

HeadMap = Literal["tiled", "grouped"]
HEAD_MAPS: tuple[HeadMap, ...] = ("tiled", "grouped")


def key_head(value_head: Array | int, n_key_heads: int, n_value_heads: int, head_map: HeadMap) -> Array | int:
    """tiled: value head j uses key head j % Hk (the order of GGUF files); grouped: j // (Hv // Hk) (Hugging Face)."""
    if head_map == "tiled":
        return value_head % n_key_heads
    return value_head // (n_value_heads // n_key_heads)


def per_value_head(x: Array, n_value_heads: int, head_map: HeadMap, axis: int) -> Array:
    """Repeats the key heads on `axis`: entry j of the result is what value head j uses."""
    n_key_heads = x.shape[axis]
    if n_key_heads == n_value_heads:
        return x
    repeats = n_value_heads // n_key_heads
    if head_map == "grouped":
        return jnp.repeat(x, repeats, axis=axis)
    return jnp.concatenate([x] * repeats, axis=axis)
