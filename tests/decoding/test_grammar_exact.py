"""Texts with a grammar have exactly the target's probabilities, masked and made to sum to 1, whatever is drafted."""

from __future__ import annotations

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from test_acceptance_exact import PLAIN, WARPED, always, distance, nodes_along
from test_loop_distribution import TableTarget
from wants import alike

from specjax.analysis.lossless.enumeration import CORRECT, Language, speculation_odds, target_odds
from specjax.decoding.decoder import Decoder
from specjax.decoding.grammar import FORBIDDEN, Constraint, Grammar, GrammarRows, GrammarTables
from specjax.decoding.sampling import warp
from specjax.decoding.settings import DraftConfig, Settings

NO = FORBIDDEN
TOY = Grammar(np.array([[1, NO, 0, 2], [NO, 2, NO, NO], [0, NO, 1, NO]], np.int32), np.arange(4, dtype=np.int32))
"""In its second state one token may come next, and none that a drafter of the first and the last token knows."""


def constraint_of(grammar: Grammar, batch: int) -> Constraint:
    rows = GrammarRows(jnp.ones(batch, jnp.int32), jnp.zeros(batch, jnp.int32), jnp.ones(batch, bool))
    return Constraint(GrammarTables.of([grammar], len(grammar.classes)), rows)


def held(spoken: Language, grammar: Grammar, known: list[int] | None = None, *, masks_drafts: bool = True) -> Language:
    """The language under a grammar, by the functions of the loop: its logits after every text, allowed or not."""
    size, count = spoken.vocab_size, spoken.length
    texts = np.array(list(product(range(size), repeat=count - 1)))
    nodes = nodes_along(np.zeros(len(texts), int), texts, size)
    constraint = constraint_of(grammar, len(texts))
    window = constraint.window(jnp.asarray(texts))
    target, drafter = spoken.target.copy(), np.full_like(spoken.drafter, -np.inf)
    target[nodes] = window.masked(jnp.asarray(spoken.target[nodes]))
    scored = np.arange(size) if known is None else np.array(known)
    named = None if known is None else jnp.broadcast_to(scored, (len(texts), len(scored)))
    for place in range(count):
        logits = jnp.asarray(spoken.drafter[nodes[:, place]][:, scored])
        if masks_drafts:
            logits = constraint.masked_drafts(logits, window.states[:, place], named)
        drafter[nodes[:, place][:, None], scored] = logits
    return Language(target, drafter, count)


@pytest.mark.parametrize("rule", CORRECT)
@pytest.mark.parametrize(("known", "masks_drafts"), [(None, True), ([0, 3], True), (None, False)])
def test_every_text_has_its_masked_probability(rule: str, known: list[int] | None, masks_drafts: bool) -> None:
    """Also if a drafter knows no token that may come next, or none of the grammar."""
    spoken = held(Language.alike(4, 4, seed=2), TOY, known, masks_drafts=masks_drafts)
    for sampler, drawn in ((PLAIN, True), (WARPED, True), (PLAIN, False)):
        assert distance(rule, spoken, 2, sampler, always(2), drawn=drawn)[0] < 1e-6
    odds = target_odds(spoken, PLAIN)
    for text in spoken.texts():
        assert (odds[text] > 0) == allowed(TOY, text)


def allowed(grammar: Grammar, text: tuple[int, ...]) -> bool:
    try:
        grammar.after(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("rule", CORRECT)
def test_the_mask_on_the_drafter_has_more_drafts_accepted(rule: str) -> None:
    masked, free = (held(Language.alike(4, 4), TOY, masks_drafts=each) for each in (True, False))
    accepted = [speculation_odds(CORRECT[rule], each, 2, PLAIN, always(2)).accepted for each in (masked, free)]
    assert accepted[0] > accepted[1] + 0.2


@pytest.mark.parametrize("rule", CORRECT)
def test_to_drop_drafts_because_they_are_not_allowed_would_bias_the_text(rule: str) -> None:
    """They were drawn, and must be refused by the rule: this is why they are verified like all others."""
    spoken = held(Language.alike(4, 4), TOY, masks_drafts=False)
    forbidden = spoken.target == -np.inf

    def until_forbidden(draft_logits: np.ndarray, drafts: np.ndarray, budget: np.ndarray) -> np.ndarray:
        start = np.repeat(np.arange(len(spoken.target)), len(drafts) // len(spoken.target))
        along = np.minimum(nodes_along(start, drafts, 4), len(spoken.target) - 1)[:, :-1]
        good = ~np.take_along_axis(forbidden[np.asarray(along)], drafts[..., None], axis=-1)[..., 0]
        return np.minimum(np.cumprod(good, axis=1).sum(axis=1), np.maximum(budget - 1, 0))

    assert distance(rule, spoken, 2, PLAIN, until_forbidden)[1] > 0.005


def test_a_grammar_for_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="made for a vocabulary of 4 tokens"):
        Decoder(TableTarget(), None, max_drafts=0).settings([Settings(draft=DraftConfig(0), grammar=TOY)])


def test_tokens_that_the_model_itself_excludes_are_chosen_only_where_no_other_may_come() -> None:
    window = constraint_of(TOY, 1).window(jnp.array([[0]]))
    logits = jnp.array([[[3.0, 2.0, -jnp.inf, 1.0], [3.0, -jnp.inf, 2.0, 1.0]]])
    masked = np.asarray(window.masked(logits))[0]
    assert masked.argmax(axis=-1).tolist() == [0, 1]
    assert np.isneginf(masked).tolist() == [[False, True, False, False], [True, False, True, True]]
    p = np.exp(np.asarray(warp(jnp.asarray(masked[:1]), alike(1, PLAIN))))
    assert p[0, 2] == 0
