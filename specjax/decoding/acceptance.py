"""Which drafts are accepted, and which token follows them.

A round verifies K drafts with K + 1 rows of target logits: row i predicts the token at `position + i`, draft i is a
guess of that token. The first n drafts are accepted and row n gives the next token, so a round emits n + 1 tokens.

| rule | draft | accepted while | guarantee |
| --- | --- | --- | --- |
| coupled | drawn with the position's TOKEN noise | it is what the target draws with the same noise | the tokens of plain sampling with the same seed, whatever the drafter |
| rejection | drawn with DRAFT noise, or any deterministic guess | u < p(draft) / q(draft) | the target's distribution |
| `Synthetic` | as for coupled | u < a given probability | none: it is for measuring speed |

Rejection: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318). Coupled: Daliri et al. 2025
(arXiv:2408.07978), with Gumbel noise. A greedy row draws nothing, and both rules accept its drafts while they are the
target's argmax, whatever the rows beside it do. The rule "greedy" is for batches in which no row draws: its program has
no code for drawing, and is compiled sooner. All rules share one state, so that a batch may change its rule between two
rounds.
"""  # noqa: E501

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.argmax import argmax
from specjax.decoding.random import Purpose, uniform
from specjax.decoding.sampling import Shortlist, sample_shortlist, sample_tokens, spread, with_shortlist
from specjax.decoding.settings import RowSettings
from specjax.models.protocol import Choice

DrawingRule = Literal["coupled", "rejection"]
RULES: tuple[DrawingRule, ...] = get_args(DrawingRule)
"""The rules for rows that draw."""

Rule = DrawingRule | Literal["greedy"]
"""The rules that keep the target's tokens or its distribution."""


@dataclass(frozen=True)
class Synthetic:
    """Accepts drafts at random, whatever the target says. NOT LOSSLESS: the text means nothing.

    For measuring speed where acceptance means nothing, as with random weights: all else in a round is computed as under
    the coupled rule.

    Attributes:
        probabilities: of accepting draft 1, of accepting draft 2 when draft 1 stands, and so on.

    Raises:
        ValueError: there are none, or one is not from 0 to 1.
    """

    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.probabilities or not all(0 <= p <= 1 for p in self.probabilities):
            raise ValueError(f"probabilities are {self.probabilities}; give one from 0 to 1 for each draft of a round")

    def tokens_per_round(self, n_drafts: int) -> float:
        """The expected tokens of a round of `n_drafts` drafts: 1 + p1 + p1 p2 + ..."""
        return 1 + sum(accumulate(self.probabilities[:n_drafts], mul))


PADDING = -1
"""Fills `Verdict.tokens` behind the last emitted token."""


class Verdict(NamedTuple):
    """The outcome of a round.

    n_accepted: drafts that stand, 0 to n_drafted. next_token: the token at position + n_accepted.
    tokens: the accepted drafts, then next_token, then PADDING.
    """

    n_accepted: Int[Array, "B"]
    next_token: Int[Array, "B"]
    tokens: Int[Array, "B R"]


def _row(x, index):
    """The entry x[b, index[b]] of each row b."""
    return jnp.take_along_axis(x, index.reshape((-1,) + (1,) * (x.ndim - 1)), axis=1)[:, 0]


def _leading(hits, n_drafted):
    """Number of hits before the first miss, among the first n_drafted."""
    hits &= jnp.arange(hits.shape[1]) < n_drafted[:, None]
    return jnp.sum(jnp.cumprod(hits.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def _verdict(drafts, n_accepted, next_token):
    column = jnp.arange(drafts.shape[1] + 1)
    tokens = jnp.where(column == n_accepted[:, None], next_token[:, None], PADDING)
    drafts = jnp.pad(drafts.astype(jnp.int32), ((0, 0), (0, 1)))
    return Verdict(n_accepted, next_token, jnp.where(column < n_accepted[:, None], drafts, tokens))


def accept_coupled(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    n_drafted: Int[Array, "B"],
    *,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Verdict:
    """Accept drafts as long as each is the token that plain sampling gives at its position. `position` is that of row
    0's token.
    """
    rows = position[:, None] + jnp.arange(target_logits.shape[1])
    choices = sample_tokens(target_logits, settings=settings, sequence=sequence, position=rows)
    return _verdict(drafts, *_first_difference(choices, drafts, n_drafted))


def _first_difference(
    choices: Int[Array, "B R"], drafts: Int[Array, "B K"], n_drafted: Int[Array, "B"]
) -> tuple[Int[Array, "B"], Int[Array, "B"]]:
    """How many drafts are what was chosen at their place, and the choice after them."""
    n_accepted = _leading(choices[:, :-1] == drafts, n_drafted)
    return n_accepted, _row(choices, n_accepted)


class Correction(NamedTuple):
    """What rejection sampling decides before the next token is drawn.

    Attributes:
        n_accepted: drafts that stand.
        rejected: whether a draft was refused, so that the next token corrects it.
        candidates: the distribution of the next token, of one position a row.
    """

    n_accepted: Int[Array, "B"]
    rejected: Bool[Array, "B"]
    candidates: Shortlist


def correction(
    candidates: Shortlist,
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K V"] | None,
    n_drafted: Int[Array, "B"],
    u: Float[Array, "B K"],
) -> Correction:
    """Accept draft d with probability min(1, p(d) / q(d)), else correct it by norm(max(0, p - q)).

    Args:
        candidates: the target's, [B, R, M].
        drafts, draft_logq, n_drafted: see `accept_rejection`.
        u: a uniform draw for each draft.
    """
    tokens, probs = candidates.tokens, jnp.exp(candidates.log_probs)
    p_draft = jnp.sum(jnp.where(tokens[:, :-1] == drafts[..., None], probs[:, :-1], 0), axis=-1)
    if draft_logq is None:
        q_draft = jnp.ones_like(p_draft)
    else:
        q_draft = jnp.exp(jnp.take_along_axis(draft_logq, drafts[..., None], axis=-1)[..., 0])
    n_accepted = _leading(u * q_draft < p_draft, n_drafted)

    rejected = n_accepted < n_drafted
    drafted = jnp.minimum(n_accepted, drafts.shape[1] - 1)
    following = jax.tree.map(lambda each: _row(each, n_accepted), candidates)
    if draft_logq is None:
        q = (following.tokens == _row(drafts, drafted)[:, None]).astype(jnp.float32)
    else:
        q = jnp.exp(jnp.take_along_axis(_row(draft_logq, drafted), following.tokens, axis=-1))
    residual = jnp.maximum(_row(probs, n_accepted) - q, 0)
    # Where p and q agree to the last place nothing is left of p - q, and a rejection is an accident of rounding: use p.
    corrected = (rejected & jnp.any(residual > 0, axis=-1))[:, None]
    following = replace(
        following,
        scores=jnp.where(corrected, jnp.log(residual), following.scores),
        log_total=jnp.where(corrected, jnp.log(jnp.sum(residual, axis=-1, keepdims=True)), following.log_total),
    )
    return Correction(n_accepted, rejected, following)


def accept_rejection(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K V"] | None,
    n_drafted: Int[Array, "B"],
    *,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Verdict:
    """Speculative sampling, see `correction`.

    `draft_logq` holds the log-probabilities that the drafts were drawn from; None says that they were not drawn but are
    a function of the context (q is 1 at the draft). `position` is that of row 0's token. When all drafts stand, the
    next token is drawn as plain sampling draws it: a row without drafts is plain sampling, draw for draw.

    What decides `n_drafted` must not depend on the drawn tokens that it drops: see `DraftConfig`.
    """
    n_drafts = drafts.shape[1]
    if n_drafts == 0:
        return accept_coupled(target_logits, drafts, n_drafted, settings=settings, sequence=sequence, position=position)
    greedy = _first_difference(argmax(target_logits), drafts, n_drafted)

    def judge(candidates: Shortlist) -> tuple[Int[Array, "B"], Int[Array, "B"]]:
        u = uniform(settings.seed, sequence, position[:, None] + jnp.arange(n_drafts), Purpose.ACCEPT)
        n_accepted, rejected, following = correction(candidates, drafts, draft_logq, n_drafted, u)
        token = sample_shortlist(
            following,
            seed=settings.seed,
            sequence=sequence,
            position=position + n_accepted,
            purpose=jnp.where(rejected, Purpose.RESIDUAL, Purpose.TOKEN),
        )
        return n_accepted, token

    def drawn() -> tuple[Int[Array, "B"], Int[Array, "B"]]:
        judged = with_shortlist(target_logits, settings, judge)
        return jax.tree.map(lambda drawn, sure: jnp.where(settings.draws, drawn, sure), judged, greedy)

    return _verdict(drafts, *lax.cond(jnp.any(settings.draws), drawn, lambda: greedy))


def accept_synthetic(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    n_drafted: Int[Array, "B"],
    *,
    rule: Synthetic,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Verdict:
    """Accept with the probabilities of the rule; the next token is the target's choice. Not lossless."""
    rows = position[:, None] + jnp.arange(target_logits.shape[1])
    choices = sample_tokens(target_logits, settings=settings, sequence=sequence, position=rows)
    u = uniform(settings.seed, sequence, rows[:, :-1], Purpose.ACCEPT)
    n_accepted = _leading(u < jnp.array(rule.probabilities[: drafts.shape[1]], jnp.float32), n_drafted)
    return _verdict(drafts, n_accepted, _row(choices, n_accepted))


def accept(
    target_logits: Float[Array, "B R V"],
    drafts: Int[Array, "B K"],
    draft_logq: Float[Array, "B K V"] | None,
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
        return _verdict(drafts, *_first_difference(argmax(target_logits), drafts, n_drafted))
    if rule == "coupled":
        return accept_coupled(target_logits, drafts, n_drafted, **of_rows)
    return accept_rejection(target_logits, drafts, draft_logq, n_drafted, **of_rows)


def choose_token(
    logits: Float[Array, "B V"],
    *,
    rule: Rule | Synthetic,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Int[Array, "B"]:
    """The target's token at absolute `position`, where nothing has been drafted."""
    if rule == "greedy":
        return argmax(logits)
    return sample_tokens(logits, settings=settings, sequence=sequence, position=position)


@partial(jax.jit, static_argnames=("vocab_size", "rule"), inline=True)  # a round has K of them: traced once
def propose_token(
    logits: Float[Array, "B M"],
    scored: Int[Array, "B M"] | None = None,
    *,
    vocab_size: int | None = None,
    rule: Rule | Synthetic,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
) -> Choice:
    """The draft of the token at absolute `position`, from the drafter's logits for it.

    `scored` names the tokens that the logits belong to, if these are not the whole vocabulary in order; `vocab_size` is
    then needed for rejection, where the verdict asks for the probabilities of other tokens as well. Under rejection all
    rows have log-probabilities; those of greedy rows mean nothing.
    """
    purpose = Purpose.DRAFT if rule == "rejection" else Purpose.TOKEN
    size = vocab_size or logits.shape[-1]

    def named(column: Int[Array, "B *M"]) -> Int[Array, "B *M"]:
        flat = column.reshape(column.shape[0], -1)
        return column if scored is None else jnp.take_along_axis(scored, flat, axis=1).reshape(column.shape)

    def draw(candidates: Shortlist) -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
        if scored is not None:
            candidates = replace(candidates, tokens=named(candidates.tokens), in_order=False)
        token = sample_shortlist(candidates, seed=settings.seed, sequence=sequence, position=position, purpose=purpose)
        return token, spread(candidates, size) if rule == "rejection" else None

    best = named(argmax(logits))
    confidence = 1 / jnp.sum(jnp.exp(logits.astype(jnp.float32) - jnp.max(logits, axis=-1, keepdims=True)), axis=-1)
    if rule == "greedy":
        return Choice(best, None, confidence)

    def drawn() -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
        token, logq = with_shortlist(logits, settings, draw)
        return jnp.where(settings.draws, token, best), logq

    def sure() -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
        return best, jnp.zeros((logits.shape[0], size), jnp.float32) if rule == "rejection" else None

    token, logq = lax.cond(jnp.any(settings.draws), drawn, sure)
    return Choice(token, logq, confidence)
