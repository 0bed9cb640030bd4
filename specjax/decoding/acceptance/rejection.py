"""Rejection: each draft is tested by itself, and the first that fails is corrected."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.correction import Correction, accept_corrected, corrected, draft_probabilities
from specjax.decoding.acceptance.verdict import Verdict, leading
from specjax.decoding.random import Purpose
from specjax.decoding.sampling import Shortlist


def correction(
    candidates: Shortlist,
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K Va"] | None,
    n_drafted: Int[Array, "B"],
    u: Float[Array, "B K"],
) -> Correction:
    """Accept draft d with probability min(1, p(d) / q(d)), else correct it by norm(max(0, p - q)). See `Correct`."""
    p, q = draft_probabilities(candidates, drafts, draft_logq)
    return corrected(candidates, drafts, draft_logq, n_drafted, leading(u * q < p, n_drafted))


def accept_rejection(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K Va"] | None,
    n_drafted: Int[Array, "B"],
    **of_rows: Any,
) -> Verdict:
    """Speculative sampling, see `correction` and, for the arguments, `accept_corrected`.

    A draft behind the first that fails leaves no trace in what is decided. So its position can be drafted again with
    the same noise.
    """
    return accept_corrected(correction, target_logits, drafts, draft_logq, n_drafted, **of_rows, purpose=Purpose.ACCEPT)
