"""What a trace tells of a round besides its tokens: how probable they were, for the target and for the drafter."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.verdict import Verdict, row_at
from specjax.decoding.settings import RowSettings
from specjax.decoding.vocabulary import totals
from specjax.mesh.columns import values_at
from specjax.models.protocol import Proposal


@struct.dataclass
class Probabilities:
    """How probable the tokens of a round were. Entries of drafts that were not verified mean nothing.

    In rows that draw, `p` and `q` are those of the distributions that temperature and filters leave. Greedy rows draw
    nothing: their `p` is the softmax of the target's logits, and their `q` is not a number.

    Attributes:
        confidence: of each draft, see `Choice`.
        p, q: the target's and the drafter's probability of each draft, given the drafts before it. q is not a number
            where drafts are not drawn.
        p_next, q_next: those of the token that the target chose after the accepted drafts. q_next is not a number where
            the drafter drew no draft at its place.
        entropy: of the softmax of the target's logits at each place, in nats.
    """

    confidence: Float[Array, "B K"]
    p: Float[Array, "B K"]
    q: Float[Array, "B K"]
    p_next: Float[Array, "B"]
    q_next: Float[Array, "B"]
    entropy: Float[Array, "B R"]


def probabilities(
    logits: Float[Array, "B R V"],
    proposal: Proposal | None,
    n_drafted: Int[Array, "B"],
    verdict: Verdict,
    settings: RowSettings,
) -> Probabilities:
    """How probable the drafts of a round and the token after them were.

    Args:
        logits: the target's.
        proposal: the drafts; None in a round without.
        n_drafted, verdict: how many were verified, and what came of it.
        settings: of each row.
    """
    wide = logits.astype(jnp.float32)
    log_total, entropy = totals(wide)
    drafts = jnp.zeros((len(logits), 0), jnp.int32) if proposal is None else proposal.tokens
    last = jnp.minimum(verdict.n_accepted, n_drafted)
    chosen = values_at(wide[:, :-1], drafts[..., None])[..., 0]
    following = values_at(row_at(wide, last), verdict.next_token[:, None])[:, 0]
    p = jnp.where(settings.along(chosen).draws, verdict.p, jnp.exp(chosen - log_total[:, :-1]))
    p_next = jnp.where(settings.draws, verdict.p_next, jnp.exp(following - row_at(log_total, last)))
    if proposal is None or proposal.logq is None:
        q, q_next = jnp.full(drafts.shape, jnp.nan), jnp.full(last.shape, jnp.nan)
    else:
        q = jnp.exp(jnp.take_along_axis(proposal.logq, drafts[..., None], axis=-1)[..., 0])
        place = jnp.minimum(last, drafts.shape[1] - 1)
        q_next = jnp.exp(proposal.logq[jnp.arange(len(place)), place, verdict.next_token])
        q = jnp.where(settings.along(q).draws, q, jnp.nan)
        q_next = jnp.where(settings.draws & (last < n_drafted), q_next, jnp.nan)
    confidence = jnp.zeros(drafts.shape, jnp.float32) if proposal is None else proposal.confidence
    return Probabilities(confidence, p, q, p_next, q_next, entropy)
