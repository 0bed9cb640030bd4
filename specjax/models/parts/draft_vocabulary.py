"""Drafters that can draft only some of the target's tokens: which these are, in files and as a parameter.

A parameter `tokens` [M] int32 has the target's token for each of the drafter's. All others have probability 0.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from checkpoints.errors import ConfigError
from checkpoints.mapping.transforms import Transform


def first_tokens(key: Array, shape: tuple[int, ...], dtype: Any) -> Int[Array, "M"]:
    """The first M tokens, for drafters that come from no file."""
    del key
    return jnp.arange(shape[0], dtype=dtype)


def as_offsets(vocab_size: int) -> Transform:
    """A tensor of the distances from the drafter's ids to the target's, as Hugging Face checkpoints have it.

    Args:
        vocab_size: V of the target; a map that leads out of it is refused with `ConfigError`.
    """
    as_ids = as_tokens(vocab_size)
    return Transform(
        lambda x: as_ids.forward(x + np.arange(x.size, dtype=x.dtype)),
        lambda tokens: tokens - np.arange(tokens.size, dtype=tokens.dtype),
        moves=False,
    )


def as_tokens(vocab_size: int) -> Transform:
    """A tensor of the target's tokens, as GGUF files have it; see `as_offsets`."""

    def checked(tokens: np.ndarray) -> np.ndarray:
        if len(outside := tokens[(tokens < 0) | (tokens >= vocab_size)]):
            raise ConfigError(
                f"d2t leads to {len(outside)} tokens that the target does not have, such as {outside[0]}; the target"
                f" has {vocab_size}. The file is damaged, or made for another target: download or convert it again"
            )
        kinds, counts = np.unique(tokens, return_counts=True)
        if len(kinds) < len(tokens):
            raise ConfigError(
                f"d2t leads to {len(kinds)} tokens from {len(tokens)}, to token {kinds[np.argmax(counts)]}"
                f" {counts.max()} times. The file is damaged: download or convert it again"
            )
        return tokens

    return Transform(checked, lambda tokens: tokens, keeps_rows=False, moves=False)
