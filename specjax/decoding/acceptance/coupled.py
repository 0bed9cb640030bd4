"""Coupled: a draft is accepted if it is the token that plain sampling gives at its position."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.drawing import Decision, decided
from specjax.decoding.acceptance.verdict import Verdict, first_difference
from specjax.decoding.argmax import argmax
from specjax.decoding.sampling import Shortlist, sample_shortlist
from specjax.decoding.settings import RowSettings


def accept_coupled(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    n_drafted: Int[Array, "B"],
    *,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Verdict:
    """Accept drafts as long as each is the token that plain sampling gives at its position. `position` is that of row
    0's token.
    """
    rows = position[:, None] + jnp.arange(target_logits.shape[1])

    def draw(candidates: Shortlist) -> Decision:
        choices = sample_shortlist(candidates, seed=settings.seed, sequence=sequence, position=rows)
        return first_difference(choices, drafts, n_drafted)

    greedy = first_difference(argmax(target_logits), drafts, n_drafted)
    return decided(target_logits, drafts, settings, draw, greedy)
