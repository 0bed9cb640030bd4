"""The verdict of a round under any of the rules."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance import block, coupled, rejection
from specjax.decoding.acceptance.drawing import Decide, Decision, Drafted, decided
from specjax.decoding.acceptance.rule import RULES, Rule
from specjax.decoding.acceptance.synthetic import Synthetic, accept_synthetic
from specjax.decoding.acceptance.verdict import Verdict, first_difference
from specjax.decoding.argmax import argmax
from specjax.decoding.random import Key
from specjax.decoding.sampling import Shortlist
from specjax.decoding.settings import RowSettings
from specjax.mesh.rows import anywhere


def accept(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K Va"] | None,
    n_drafted: Int[Array, "B"],
    *,
    rule: Rule | Synthetic,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Verdict:
    """The verdict under `rule`, for drafts made by `propose_token` under the same rule and settings."""
    given = Drafted(drafts, draft_logq, n_drafted, settings, sequence, position)
    if isinstance(rule, Synthetic):
        return accept_synthetic(target_logits, given, rule)
    greedy = first_difference(argmax(target_logits), drafts, n_drafted)
    if rule == "greedy":
        return Verdict.of(drafts, *greedy)
    return decided(target_logits, given, _DECIDE[rule], greedy)


def _decide_each(candidates: Shortlist, given: Drafted, key: Key) -> Decision:
    """Each row under its own rule. A rule that no row has costs nothing."""
    decision = jnp.zeros_like(given.n_drafted), jnp.zeros_like(given.n_drafted)
    for number, rule in enumerate(RULES):
        own = given.settings.draws & (given.settings.rule == number)

        def judged(rule: str = rule, own: Array = own, others: Decision = decision) -> Decision:
            n_accepted, token = _DECIDE[rule](candidates, given, key)
            return jnp.where(own, n_accepted, others[0]), jnp.where(own, token, others[1])

        decision = lax.cond(anywhere(own), judged, lambda others=decision: others)
    return decision


_DECIDE: Mapping[str, Decide] = {
    "coupled": coupled.decide,
    "rejection": rejection.decide,
    "block": block.decide,
    "each": _decide_each,
}
