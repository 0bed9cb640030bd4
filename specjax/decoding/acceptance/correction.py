"""What rejection and block verification have in common: where the drafts fail, the next token corrects them.

The token after the accepted drafts comes from what is left of the target's distribution when the drafter's share is
taken away, so that accepted and corrected tokens together have exactly the target's distribution.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.acceptance import coupled
from specjax.decoding.acceptance.drawing import Decision, Drafted
from specjax.decoding.acceptance.verdict import row_at
from specjax.decoding.random import Key, Purpose, Purposes, uniform
from specjax.decoding.sampling import Shortlist, sample_shortlist


class Correction(NamedTuple):
    """What is decided before the next token is drawn.

    Attributes:
        n_accepted: drafts that stand.
        rejected: whether a draft was refused, so that the next token corrects it.
        candidates: the distribution of the next token, of one position a row.
    """

    n_accepted: Int[Array, "B"]
    rejected: Bool[Array, "B"]
    candidates: Shortlist


class Correct(Protocol):
    """How a rule decides, given its random numbers."""

    def __call__(
        self,
        candidates: Shortlist,
        drafts: Int[Array, "B K"],
        draft_logq: Float[Array, "B K Va"] | None,
        n_drafted: Int[Array, "B"],
        u: Float[Array, "B K"],
    ) -> Correction:
        """Decide how many drafts stand.

        Args:
            candidates: the target's, [B, R, M].
            drafts: [B, K], of which the first `n_drafted` of a row count.
            draft_logq: the log-probabilities that the drafts were drawn from; None says that they were not drawn but
                are a function of the context (q is 1 at the draft).
            n_drafted: see there.
            u: a uniform draw for each draft.
        """
        ...


def draft_probabilities(
    candidates: Shortlist, drafts: Int[Array, "B K"], draft_logq: Float[Array, "B K Va"] | None
) -> tuple[Float[Array, "B K"], Float[Array, "B K"]]:
    """The target's and the drafter's probability of each draft."""
    p = candidates.at_places(slice(0, drafts.shape[1])).probability_of(drafts)
    if draft_logq is None:
        return p, jnp.ones_like(p)
    return p, jnp.exp(jnp.take_along_axis(draft_logq, drafts[..., None], axis=-1)[..., 0])


def drafter_shares(
    candidates: Shortlist, drafts: Int[Array, "B *T"], draft_logq: Float[Array, "B *T Va"] | None
) -> Float[Array, "B *T M"]:
    """The drafter's probability of each candidate, at the places of these drafts."""
    if draft_logq is None:
        return (candidates.tokens == drafts[..., None]).astype(jnp.float32)
    if candidates.in_order:
        return jnp.exp(draft_logq)
    return jnp.exp(jnp.take_along_axis(draft_logq, candidates.tokens, axis=-1))


def corrected(
    candidates: Shortlist,
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K Va"] | None,
    n_drafted: Int[Array, "B"],
    n_accepted: Int[Array, "B"],
    weight: Float[Array, "B"] | float = 1.0,
) -> Correction:
    """The next token's distribution: norm(max(0, weight p - q)) after a rejection, p where all drafts stand."""
    rejected = n_accepted < n_drafted
    drafted = jnp.minimum(n_accepted, drafts.shape[1] - 1)
    following = jax.tree.map(lambda each: row_at(each, n_accepted), candidates)
    logq = None if draft_logq is None else row_at(draft_logq, drafted)
    p, q = jnp.exp(following.log_probs), drafter_shares(following, row_at(drafts, drafted), logq)
    residual = jnp.maximum(jnp.reshape(weight, (-1, 1)) * p - q, 0)
    # Where p and q agree to the last place nothing is left of p - q, and a rejection is an accident of rounding: use p.
    possible = (rejected & jnp.any(residual > 0, axis=-1))[:, None]
    following = replace(
        following,
        scores=jnp.where(possible, jnp.log(residual), following.scores),
        log_total=jnp.where(possible, jnp.log(jnp.sum(residual, axis=-1, keepdims=True)), following.log_total),
    )
    return Correction(n_accepted, rejected, following)


def decide_by(correct: Correct, purpose: Purposes, candidates: Shortlist, given: Drafted, key: Key) -> Decision:
    """Decide by a rule that corrects; `purpose` is that of its draws.

    When all drafts stand, the next token is drawn as plain sampling draws it: a row without drafts is plain sampling,
    draw for draw.

    What decides how many drafts there are must not depend on the drawn tokens that it drops: see `DraftConfig`.
    """
    if given.tokens.shape[1] == 0:
        return coupled.decide(candidates, given, key)
    u = uniform(Key(*(words[:, :-1] for words in key)), purpose)
    n_accepted, rejected, following = correct(candidates, given.tokens, given.logq, given.n_drafted, u)
    after = Key(*(row_at(words, n_accepted) for words in key))
    return n_accepted, sample_shortlist(following, after, jnp.where(rejected, Purpose.RESIDUAL, Purpose.TOKEN))
