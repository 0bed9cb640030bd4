"""Which key head a value head reads, and how padding rows are made harmless."""

from typing import Literal

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

HeadMap = Literal["tiled", "grouped"]
HEAD_MAPS: tuple[HeadMap, ...] = ("tiled", "grouped")


def value_heads(x: Array, n_value_heads: int, head_map: HeadMap, axis: int) -> Array:
    """Repeats the key heads on `axis` so that entry j is what value head j uses.

    tiled: value head j uses key head j % Hk (the order of GGUF files); grouped: j // (Hv // Hk) (Hugging Face).
    """
    n_key_heads = x.shape[axis]
    if n_key_heads == n_value_heads:
        return x
    repeats = n_value_heads // n_key_heads
    if head_map == "grouped":
        return jnp.repeat(x, repeats, axis=axis)
    return jnp.concatenate([x] * repeats, axis=axis)


def mask_padding(valid: Bool[Array, "B T"] | None, *arrays: Array) -> tuple[Array, ...]:
    """Zeroes the rows t >= n_valid of arrays [B, T, ...]; a zero row neither moves the state nor produces output."""
    if valid is None:
        return arrays
    return tuple(jnp.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, 0) for x in arrays)


def valid_rows(n_valid: Int[Array, " B"] | None, n_tokens: int) -> Bool[Array, "B T"] | None:
    """[B, T], true where t < n_valid; None when every row is valid."""
    return None if n_valid is None else jnp.arange(n_tokens) < n_valid[:, None]
