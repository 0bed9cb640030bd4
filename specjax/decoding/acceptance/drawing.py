"""Verdicts of batches in which some rows draw, and how probable what was drawn is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.verdict import Verdict, row_at
from specjax.decoding.random import Key, key_at
from specjax.decoding.sampling import Shortlist, with_shortlist
from specjax.decoding.settings import RowSettings
from specjax.mesh.rows import anywhere


class Drafted(NamedTuple):
    """What a rule decides about, besides the target's distributions.

    Attributes:
        tokens: the drafts.
        logq: the log-probabilities that they were drawn from; None if they are a function of the context.
        n_drafted: how many drafts of each row there are.
        settings: of each row.
        sequence: the number of each row's text.
        position: that of the token for which draft 0 is a guess.
    """

    tokens: Int[Array, "B K"]
    logq: Float[Array, "B K Va"] | None
    n_drafted: Int[Array, "B"]
    settings: RowSettings
    sequence: Int[Array, "B"]
    position: Int[Array, "B"]

    @property
    def positions(self) -> Int[Array, "B R"]:
        """Those of the drafts, and of the token after them."""
        return self.position[:, None] + jnp.arange(self.tokens.shape[1] + 1)


Decision = tuple[Int[Array, "B"], Int[Array, "B"]]
"""How many drafts stand in each row, and the token after them."""

Decide = Callable[[Shortlist, Drafted, Key], Decision]
"""A rule: it decides by what the filters leave of the target's distributions, [B, R, M], and draws with the keys of
these places."""


def decided(target_logits: Float[Array, "B R V"], given: Drafted, decide: Decide, greedy: Decision) -> Verdict:
    """The verdict: what `decide` makes of the distributions in rows that draw, and `greedy` in the others.

    `decide` is traced twice, as `with_shortlist` says. The probabilities of a verdict that nobody reads are not
    computed: the compiler leaves them out.
    """
    drafts, settings = given.tokens, given.settings

    def judge(key: Key, candidates: Shortlist) -> tuple[Array, ...]:
        n_accepted, token = decide(candidates, given, key)
        at_places = jnp.pad(drafts, ((0, 0), (0, 1)))  # a token for each place; there is no draft at the last one
        p = candidates.probability_of(at_places)[:, :-1]
        following = candidates.probability_of(jnp.broadcast_to(token[:, None], at_places.shape))
        return n_accepted, token, p, row_at(following, n_accepted)

    def sure() -> tuple[Array, ...]:
        unknown = jnp.full(drafts.shape, jnp.nan), jnp.full(drafts.shape[:1], jnp.nan)
        return (*greedy, *unknown)

    def drawn() -> tuple[Array, ...]:
        key = key_at(settings.seed, given.sequence, given.positions)
        found = with_shortlist(target_logits, settings, partial(judge, key))
        return jax.tree.map(lambda own, other: jnp.where(settings.along(own).draws, own, other), found, sure())

    return Verdict.of(drafts, *lax.cond(anywhere(settings.draws), drawn, sure))
