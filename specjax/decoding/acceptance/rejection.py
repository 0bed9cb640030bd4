"""Rejection: each draft is tested by itself, and the first that fails is corrected."""

from __future__ import annotations

from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.correction import Correction, corrected, decide_by, draft_probabilities
from specjax.decoding.acceptance.drawing import Decision, Drafted
from specjax.decoding.acceptance.verdict import leading
from specjax.decoding.random import Key, Purpose
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


def decide(candidates: Shortlist, given: Drafted, key: Key) -> Decision:
    """Speculative sampling, see `correction`.

    A draft behind the first that fails leaves no trace in what is decided. So its position can be drafted again with
    the same noise.
    """
    return decide_by(correction, Purpose.ACCEPT, candidates, given, key)
