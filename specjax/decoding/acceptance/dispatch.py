"""The verdict of a round under any of the rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.block import accept_block
from specjax.decoding.acceptance.coupled import accept_coupled
from specjax.decoding.acceptance.rejection import accept_rejection
from specjax.decoding.acceptance.rule import RULES, Rule
from specjax.decoding.acceptance.synthetic import Synthetic, accept_synthetic
from specjax.decoding.acceptance.verdict import Verdict, first_difference
from specjax.decoding.argmax import argmax
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
    of_rows: dict[str, Any] = {"settings": settings, "sequence": sequence, "position": position}
    if isinstance(rule, Synthetic):
        return accept_synthetic(target_logits, drafts, n_drafted, rule=rule, **of_rows)
    if rule == "greedy":
        return Verdict.of(drafts, *first_difference(argmax(target_logits), drafts, n_drafted))
    if rule == "each":
        return _accept_each(target_logits, drafts, draft_logq, n_drafted, **of_rows)
    if rule == "coupled":
        return accept_coupled(target_logits, drafts, n_drafted, **of_rows)
    correcting = accept_block if rule == "block" else accept_rejection
    return correcting(target_logits, drafts, draft_logq, n_drafted, **of_rows)


def _accept_each(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K Va"] | None,
    n_drafted: Int[Array, "B"],
    *,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Verdict:
    """The verdict on each row under its own rule. Rules that no row has cost nothing."""
    verdict = Verdict.of(drafts, *first_difference(argmax(target_logits), drafts, n_drafted))
    for number, rule in enumerate(RULES):
        own = settings.draws & (settings.rule == number)

        def judged(rule: Rule = rule, own: Array = own, others: Verdict = verdict) -> Verdict:
            found = accept(
                target_logits,
                drafts,
                draft_logq,
                n_drafted,
                rule=rule,
                settings=settings.idle_unless(own),
                sequence=sequence,
                position=position,
            )
            return jax.tree.map(
                lambda new, old: jnp.where(jnp.expand_dims(own, [*range(1, new.ndim)]), new, old), found, others
            )

        verdict = lax.cond(anywhere(own), judged, lambda others=verdict: others)
    return verdict
