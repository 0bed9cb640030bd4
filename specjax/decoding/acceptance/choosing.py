"""One token at a time: the target's where nothing has been drafted, and a drafter's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance.rule import RULES, Rule, draws_drafts
from specjax.decoding.acceptance.synthetic import Synthetic
from specjax.decoding.argmax import argmax
from specjax.decoding.random import Purpose, Purposes, key_at, of_round
from specjax.decoding.sampling import Shortlist, sample_shortlist, sample_tokens, spread, with_shortlist
from specjax.decoding.settings import RowSettings
from specjax.decoding.vocabulary import maximum, sum_of_exp, vocabulary_size
from specjax.mesh.rows import anywhere
from specjax.models.protocol import Choice


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


def _purpose(rule: Rule | Synthetic, ahead: Int[Array, "B"] | None, settings: RowSettings) -> Purposes:
    if not draws_drafts(rule):
        return Purpose.TOKEN
    if rule == "rejection":
        return Purpose.DRAFT
    if ahead is None:
        raise ValueError("the block rule keys a draft by its place in the round: give `ahead`")
    if rule == "block":
        return of_round(Purpose.DRAFT, ahead)
    alone = jnp.where(settings.rule == RULES.index("coupled"), Purpose.TOKEN, Purpose.DRAFT)
    return jnp.where(settings.rule == RULES.index("block"), of_round(Purpose.DRAFT, ahead), alone)


@partial(jax.jit, static_argnames=("vocab_size", "rule", "stated"), inline=True)  # a round has K of them: traced once
def propose_token(
    logits: Float[Array, "B M"],
    scored: Int[Array, "B Ma"] | None = None,
    *,
    vocab_size: int | None = None,
    rule: Rule | Synthetic,
    stated: bool = False,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B"],
    ahead: Int[Array, "B"] | None = None,
) -> Choice:
    """The draft of the token at absolute `position`, from the drafter's logits for it.

    `scored` names the tokens that the logits of all parts belong to, if these are not the whole vocabulary in order;
    `vocab_size` is then needed where drafts are drawn, because the verdict asks for the probabilities of other tokens
    as well. There all rows have log-probabilities; those of greedy rows mean nothing. `stated` asks for them under the
    coupled rule too, whose verdict does without. `ahead` is how many drafts of its round stand before it, which the
    block rule needs.
    """
    purpose, states = _purpose(rule, ahead, settings), stated or draws_drafts(rule)
    size = vocab_size or vocabulary_size(logits)

    def named(column: Int[Array, "B *M"]) -> Int[Array, "B *M"]:
        flat = column.reshape(column.shape[0], -1)
        return column if scored is None else jnp.take_along_axis(scored, flat, axis=1).reshape(column.shape)

    best = named(argmax(logits))
    confidence = 1 / sum_of_exp(logits.astype(jnp.float32) - maximum(logits))[..., 0]
    if rule == "greedy":
        return Choice(best, None, confidence)

    def drawn() -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
        key = key_at(settings.seed, sequence, position)

        def draw(candidates: Shortlist) -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
            if scored is not None:
                candidates = replace(candidates, tokens=named(candidates.tokens), in_order=False)
            return sample_shortlist(candidates, key, purpose), spread(candidates, size) if states else None

        token, logq = with_shortlist(logits, settings, draw)
        return jnp.where(settings.draws, token, best), logq

    def sure() -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:
        return best, jnp.zeros((logits.shape[0], size), jnp.float32) if states else None

    token, logq = lax.cond(anywhere(settings.draws), drawn, sure)
    return Choice(token, logq, confidence)
