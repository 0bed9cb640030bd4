"""Verdicts of batches in which some rows draw, and how probable what was drawn is."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.verdict import Verdict, row_at
from specjax.decoding.sampling import Shortlist, with_shortlist
from specjax.decoding.settings import RowSettings
from specjax.mesh.rows import anywhere

Decision = tuple[Int[Array, "B"], Int[Array, "B"]]
"""How many drafts stand in each row, and the token after them."""


def decided(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    settings: RowSettings,
    draw: Callable[[Shortlist], Decision],
    greedy: Decision,
) -> Verdict:
    """The verdict: what `draw` makes of the distributions in rows that draw, and `greedy` in the others.

    `draw` is traced twice, as `with_shortlist` says. The probabilities of a verdict that nobody reads are not computed:
    the compiler leaves them out.
    """

    def judge(candidates: Shortlist) -> tuple[Array, ...]:
        n_accepted, token = draw(candidates)
        at_places = jnp.pad(drafts, ((0, 0), (0, 1)))  # a token for each place; there is no draft at the last one
        p = candidates.probability_of(at_places)[:, :-1]
        following = candidates.probability_of(jnp.broadcast_to(token[:, None], at_places.shape))
        return n_accepted, token, p, row_at(following, n_accepted)

    def sure() -> tuple[Array, ...]:
        unknown = jnp.full(drafts.shape, jnp.nan), jnp.full(drafts.shape[:1], jnp.nan)
        return (*greedy, *unknown)

    def drawn() -> tuple[Array, ...]:
        found = with_shortlist(target_logits, settings, judge)
        return jax.tree.map(lambda own, other: jnp.where(settings.along(own).draws, own, other), found, sure())

    return Verdict.of(drafts, *lax.cond(anywhere(settings.draws), drawn, sure))
