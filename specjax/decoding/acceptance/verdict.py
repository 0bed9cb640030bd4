"""The outcome of a round, and how the rules put it together."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

PADDING = -1
"""Fills `Verdict.tokens` behind the last emitted token."""


class Verdict(NamedTuple):
    """The outcome of a round.

    Attributes:
        n_accepted: drafts that stand, 0 to n_drafted.
        next_token: the token at position + n_accepted.
        tokens: the accepted drafts, then next_token, then PADDING.
        p: the target's probability of each draft, in rows that draw; of drafts that were not verified it means nothing.
        p_next: the target's probability of next_token, in rows that draw.
    """

    n_accepted: Int[Array, "B"]
    next_token: Int[Array, "B"]
    tokens: Int[Array, "B R"]
    p: Float[Array, "B K"]
    p_next: Float[Array, "B"]

    @classmethod
    def of(
        cls,
        drafts: Int[Array, "B K"],
        n_accepted: Int[Array, "B"],
        next_token: Int[Array, "B"],
        p: Float[Array, "B K"] | None = None,
        p_next: Float[Array, "B"] | None = None,
    ) -> Verdict:
        """With the emitted tokens put together. Where no row draws there are no probabilities, which are NaN then."""
        column = jnp.arange(drafts.shape[1] + 1)
        tokens = jnp.where(column == n_accepted[:, None], next_token[:, None], PADDING)
        drafts_and_gap = jnp.pad(drafts.astype(jnp.int32), ((0, 0), (0, 1)))
        return cls(
            n_accepted,
            next_token,
            tokens=jnp.where(column < n_accepted[:, None], drafts_and_gap, tokens),
            p=jnp.full(drafts.shape, jnp.nan) if p is None else p,
            p_next=jnp.full(n_accepted.shape, jnp.nan) if p_next is None else p_next,
        )


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
