"""Block verification: the drafts are judged together, so that more of them stand than if each is tested by itself.

Let x1 .. xn be the drafts of a row, P the target's and Q the drafter's probabilities. The weight of the first i drafts
is w_0 = 1, w_i = min(1, w_(i-1) P(x_i) / Q(x_i)). They pass with the probability h_i, each i by a draw of its own:

    h_n = w_n,    h_i = S_i / (S_i + 1 - w_i)  with  S_i = sum over x of max(0, w_i P(x) - Q(x))  for i < n,

where P(x) and Q(x) are those after x1 .. xi. The longest start that passes is accepted. The next token is drawn from P
where all n are accepted, and otherwise from norm(max(0, w_i P - Q)).

Why this is exact: going back from the last draft, the probability that at least i drafts are accepted, given x1 .. xi,
is w_i. It is so for i = n. For i < n, longer starts pass with probability sum_x min(Q(x), w_i P(x)) = w_i - S_i, and
h_i makes up the rest. So a text that begins with x1 .. xi x, when at least i drafts are accepted, has the probability
Q(x1 .. xi) (min(Q(x), w_i P(x)) + max(0, w_i P(x) - Q(x))) = Q(x1 .. xi) w_i P(x): the next token has the target's
distribution given what is accepted. The argument goes along one path of drafts at a time. So n may differ from path to
path, as long as whether drafting ends after x_i depends on x1 .. xi alone: `p_min` is exact, because the confidence in
x_(i+1) is known before it is drawn. A draft must not be dropped for what was drawn at its own place or later.

Unlike under rejection, drafts behind the accepted ones have had a say. Used again for the same position in the next
round, their noise would be correlated with having got there. So the draws of a round are keyed by their distance from
the round's start as well, see `of_round`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.correction import (
    Correction,
    corrected,
    decide_by,
    draft_probabilities,
    drafter_shares,
)
from specjax.decoding.acceptance.drawing import Decision, Drafted
from specjax.decoding.acceptance.verdict import row_at
from specjax.decoding.random import Key, Purpose, of_round
from specjax.decoding.sampling import Shortlist


def correction(
    candidates: Shortlist,
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K Va"] | None,
    n_drafted: Int[Array, "B"],
    u: Float[Array, "B K"],
) -> Correction:
    """Accept the longest start of the drafts that passes, and correct what follows it. See `Correct`."""
    weights = [jnp.ones(drafts.shape[0], jnp.float32)]
    for p, q in zip(*map(jnp.transpose, draft_probabilities(candidates, drafts, draft_logq)), strict=True):
        joint = weights[-1] * p
        weights.append(jnp.where(joint > 0, jnp.minimum(joint / q, 1), 0))
    weight = jnp.stack(weights, axis=1)

    # What is left of the target after 0 .. K - 1 drafts when the next draft's share is taken away.
    places, before = candidates.at_places(slice(drafts.shape[1])), weight[:, :-1, None]
    left = jnp.maximum(before * jnp.exp(places.log_probs) - drafter_shares(places, drafts, draft_logq), 0)
    left = jnp.pad(jnp.sum(left, axis=-1), ((0, 0), (0, 1)))

    length = jnp.arange(weight.shape[1])
    inside = jnp.where(weight < 1, left / (left + 1 - weight), 1)
    passed = jnp.pad(u, ((0, 0), (1, 0))) < jnp.where(length < n_drafted[:, None], inside, weight)
    n_accepted = jnp.max(jnp.where(passed & (length <= n_drafted[:, None]), length, 0), axis=1).astype(jnp.int32)
    return corrected(candidates, drafts, draft_logq, n_drafted, n_accepted, row_at(weight, n_accepted))


def decide(candidates: Shortlist, given: Drafted, key: Key) -> Decision:
    """Judge the drafts of a round together, see `correction`."""
    drafts = given.tokens
    purpose = jnp.broadcast_to(of_round(Purpose.ACCEPT, jnp.arange(drafts.shape[1])), drafts.shape)
    return decide_by(correction, purpose, candidates, given, key)
