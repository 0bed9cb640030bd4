"""The outcome of a round, and how the rules put it together."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

PADDING = -1
"""Fills `Verdict.tokens` behind the last emitted token."""


class Verdict(NamedTuple):
    """The outcome of a round.

    n_accepted: drafts that stand, 0 to n_drafted. next_token: the token at position + n_accepted.
    tokens: the accepted drafts, then next_token, then PADDING.
    """

    n_accepted: Int[Array, "B"]
    next_token: Int[Array, "B"]
    tokens: Int[Array, "B R"]

    @classmethod
    def of(cls, drafts: Int[Array, "B K"], n_accepted: Int[Array, "B"], next_token: Int[Array, "B"]) -> Verdict:
        """With the emitted tokens put together."""
        column = jnp.arange(drafts.shape[1] + 1)
        tokens = jnp.where(column == n_accepted[:, None], next_token[:, None], PADDING)
        drafts = jnp.pad(drafts.astype(jnp.int32), ((0, 0), (0, 1)))
        return cls(n_accepted, next_token, jnp.where(column < n_accepted[:, None], drafts, tokens))


def row_at(x: Array, index: Int[Array, "B"]) -> Array:
    """The entry x[b, index[b]] of each row b."""
    return jnp.take_along_axis(x, index.reshape((-1,) + (1,) * (x.ndim - 1)), axis=1)[:, 0]


def leading(hits: Bool[Array, "B K"], n_drafted: Int[Array, "B"]) -> Int[Array, "B"]:
    """Number of hits before the first miss, among the first n_drafted."""
    hits &= jnp.arange(hits.shape[1]) < n_drafted[:, None]
    return jnp.sum(jnp.cumprod(hits.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def first_difference(
    choices: Int[Array, "B R"], drafts: Int[Array, "B K"], n_drafted: Int[Array, "B"]
) -> tuple[Int[Array, "B"], Int[Array, "B"]]:
    """How many drafts are what was chosen at their place, and the choice after them."""
    n_accepted = leading(choices[:, :-1] == drafts, n_drafted)
    return n_accepted, row_at(choices, n_accepted)
