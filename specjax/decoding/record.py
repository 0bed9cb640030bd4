"""What the host learns of a round, or of the first token."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.argmax import argmax
from specjax.decoding.decoder import Decoder
from specjax.decoding.probabilities import Probabilities
from specjax.decoding.sampling import top2_margin
from specjax.decoding.vocabulary import logsumexp
from specjax.mesh.columns import top_k, values_at
from specjax.mesh.rows import anywhere


class TopTokens(NamedTuple):
    """The most probable tokens, best first, of equal ones the lower id first.

    Attributes:
        logprobs: log-probabilities.
        tokens: token ids.
    """

    logprobs: Float[Array, "B R n"]
    tokens: Int[Array, "B R n"]


class TokenScores(NamedTuple):
    """What the target's logits say of R places in each row; the meaning is that of the fields of `RoundRecord`."""

    margin: Float[Array, "B R"] | None
    logprob: Float[Array, "B R"] | None
    top_logprobs: TopTokens | None
    finite: Bool[Array, "B"]


def token_scores(
    decoder: Decoder,
    logits: Float[Array, "B R V"],
    choices: Float[Array, "B R V"],
    tokens: Int[Array, "B R"],
    n_valid: Int[Array, "B"],
    scored: Bool[Array, "B"],
) -> TokenScores:
    """What the logits say of chosen tokens; the first `n_valid` places count. `choices` are the logits that grammars
    leave. Log-probabilities are those of rows that are `scored`; if there is none, they cost nothing.
    """
    peak = values_at(logits, argmax(logits)[..., None])[..., 0]
    logprob = top = None
    if (count := decoder.logprobs) is not None:

        def look() -> tuple[Array, Array, Array]:
            wide = logits.astype(jnp.float32)
            log_total = logsumexp(wide)
            chosen = jnp.maximum(tokens, 0)[..., None]  # padding has no logit
            best, index = top_k(wide, count)
            return (values_at(wide, chosen) - log_total)[..., 0], best - log_total, index

        def skip() -> tuple[Array, Array, Array]:
            nothing = jnp.zeros((*tokens.shape, count), jnp.float32)
            return jnp.zeros(tokens.shape, jnp.float32), nothing, nothing.astype(jnp.int32)

        logprob, best, index = lax.cond(anywhere(scored), look, skip)
        top = TopTokens(best, index)
    return TokenScores(
        margin=top2_margin(choices) if decoder.margins else None,
        logprob=logprob,
        top_logprobs=top,
        finite=jnp.all(jnp.isfinite(peak) | (jnp.arange(logits.shape[1]) >= n_valid[:, None]), axis=1),
    )


@struct.dataclass
class RoundRecord:
    """What the host learns of a round. The first token of a sequence is a round of one token without drafts.

    Attributes:
        tokens: emitted tokens, then unspecified values.
        n_emitted: how many of them count; 0 in finished rows.
        drafts: what was drafted.
        n_drafted, n_accepted: how many drafts were verified and how many stood.
        source: which of several drafters made the drafts, by its number; 0 of a drafter that is one.
        skipped: whether the row did not draft because of a streak of failures.
        hidden_norm: L2 norm of the hidden state that the drafter started from.
        margin: by how much the largest logit led the second one where each emitted token was chosen, of the tokens that
            the row's grammar allows; infinite where it allows one. Which token was chosen plays no part. None unless
            asked for.
        logprob: the log-probability of each emitted token: the log-softmax of the target's logits in float32, before
            temperature, filters and grammars, whatever the row's settings. None unless asked for.
        top_logprobs: the most probable tokens at these places, in the same terms. None unless asked for.
        finite: whether the largest logit of every place that the round looked at is a number: false where there is a
            NaN or an infinite one, or where all are -inf. Some may be -inf: these tokens are excluded.
        probabilities: of the drafts and of what replaced them. None unless asked for, and with first tokens.
    """

    tokens: Int[Array, "B R"]
    n_emitted: Int[Array, "B"]
    drafts: Int[Array, "B K"]
    n_drafted: Int[Array, "B"]
    n_accepted: Int[Array, "B"]
    source: Int[Array, "B"]
    skipped: Bool[Array, "B"]
    hidden_norm: Float[Array, "B"]
    margin: Float[Array, "B R"] | None
    logprob: Float[Array, "B R"] | None
    top_logprobs: TopTokens | None
    finite: Bool[Array, "B"]
    probabilities: Probabilities | None = None
