"""The verdict of a round under any of the rules."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.block import accept_block
from specjax.decoding.acceptance.coupled import accept_coupled
from specjax.decoding.acceptance.rejection import accept_rejection
from specjax.decoding.acceptance.rule import Rule
from specjax.decoding.acceptance.synthetic import Synthetic, accept_synthetic
from specjax.decoding.acceptance.verdict import Verdict, first_difference
from specjax.decoding.argmax import argmax
from specjax.decoding.settings import RowSettings


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
    if rule == "coupled":
        return accept_coupled(target_logits, drafts, n_drafted, **of_rows)
    correcting = accept_block if rule == "block" else accept_rejection
    return correcting(target_logits, drafts, draft_logq, n_drafted, **of_rows)
