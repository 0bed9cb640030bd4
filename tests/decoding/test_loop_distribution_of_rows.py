"""Rows with settings of their own, in one program for all of them: texts have exactly the probabilities asked for.

By any rule, from any of several drafters, held to a grammar, or leaning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import Run, run
from test_loop_distribution import (
    BATCH,
    BUDGETS,
    LOOKED_UP,
    VOCAB,
    TableDrafter,
    TableTarget,
    assert_probable,
    both,
    differing,
    enumerate_sequences,
    p_value,
    tables,
)
from wants import alike

from specjax.decoding.acceptance import DrawingRule
from specjax.decoding.decoder import Decoder
from specjax.decoding.grammar import FORBIDDEN, Grammar
from specjax.decoding.leaning import Leaning, offset_after
from specjax.decoding.sampling import warp
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models.drafters.first_of import FirstOf
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import Params, Proposal
from specjax.state import SequenceState


@dataclass(frozen=True)
class Sometimes(BaseDrafter):
    """Looks up where the text says so; elsewhere its proposal is nonsense, which it does not want to be used."""

    def propose(self, params: Params, pending: jax.Array, state: SequenceState, **how: Any) -> Proposal:
        proposal = LOOKED_UP.propose(params, pending, state, **how)
        made = jnp.where(state.length % 2 == pending % 2, how["num_drafts"], 0)
        tokens = jnp.where(made[:, None] > 0, proposal.tokens, VOCAB + 7)
        return proposal._replace(tokens=tokens, made=made, confidence=jnp.where(made[:, None] > 0, 1, jnp.nan))


EVERYTHING = Decoder(TableTarget(), FirstOf((LOOKED_UP, Sometimes(), TableDrafter())), "each", 3)
"""One program for rows of any rule and of any of the drafters, with grammars and leanings."""
LOOKS_UP, SOMETIMES, DRAWS = range(3)
THREE = Grammar(
    np.array([[1, FORBIDDEN, 0], [2, 0, FORBIDDEN], [FORBIDDEN, 1, 2]], np.int32), np.arange(VOCAB, dtype=np.int32)
)
LEAN = Leaning(bias=((0, 0.7), (2, -0.4)), presence=0.6, frequency=0.9)


def sample_together(*wants: Settings) -> tuple[list[list[tuple[int, list[list[int]]]]], Run, np.ndarray]:
    """What rows with each of these settings say, by budget; the run, and which settings each of its rows has.

    The last rows are other ones. They have what else there is for rows, so that all batches are one program.
    """
    each = len(BUDGETS)
    other = Settings(SamplerConfig(0.8), DraftConfig(3), grammar=THREE, leaning=LEAN)
    own = np.arange(BATCH) // each % len(wants)
    own[-each:] = len(wants)
    rows = [(*wants, other)[index] for index in own]
    result = run(EVERYTHING, tables(), [[0]] * BATCH, np.resize(BUDGETS, BATCH), rows=rows)
    said = [
        [
            (budget, [result.tokens[row] for row in np.flatnonzero(own == index) if row % each == place])
            for place, budget in enumerate(BUDGETS)
        ]
        for index in range(len(wants))
    ]
    return said, result, own


@differing
def test_rows_with_block_verification_have_the_probabilities_of_the_target(changes: dict[str, Any]) -> None:
    usual = {"sampler": SamplerConfig(0.8), "draft": DraftConfig(3), "seed": 11, "rule": "block", "drafters": (DRAWS,)}
    assert_probable(sample_together(Settings(**(usual | changes)))[0][0], changes)


@both
def test_rows_of_several_drafters_have_the_probabilities_of_the_target(rule: DrawingRule) -> None:
    """Of those that draw and those that look up, in the same rounds, with a threshold of confidence.

    Some rows may be drafted for by both, some by either of them.
    """
    sampler, draft = SamplerConfig(temperature=0.8), DraftConfig(n_max=3, p_min=0.5)
    drafters = ((SOMETIMES, DRAWS), (SOMETIMES,), (DRAWS,))
    said, got, own = sample_together(*(Settings(sampler, draft, 11, rule=rule, drafters=each) for each in drafters))
    drafted = got.rounds.n_drafted > 0
    for index, (allowed, sequences) in enumerate(zip(drafters, said, strict=True)):
        assert set(got.rounds.source[drafted & (own == index)].tolist()) == set(allowed)
        for budget, tokens in sequences:
            odds = enumerate_sequences(sampler, budget, None)
            assert p_value(tokens, odds) > 1e-4, (allowed, budget)  # of twelve one is below 1e-3 now and then


@cache
def masked_shares(sampler: SamplerConfig) -> np.ndarray:
    """The distributions by state of the grammar and by node."""
    logits = np.asarray(tables()["target"])
    masked = np.where(THREE.next[:, None] == FORBIDDEN, -np.inf, logits).reshape(-1, VOCAB)
    odds = np.exp(np.asarray(warp(masked, alike(len(masked), sampler)), np.float64))
    return (odds / odds.sum(axis=1, keepdims=True)).reshape(len(THREE.next), *logits.shape)


def masked_odds(sampler: SamplerConfig, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence after the prompt (0), from tables of logits and of the grammar."""
    shares, odds = masked_shares(sampler), {}
    for tokens in product(range(VOCAB), repeat=length):
        node, state, p = 0, 0, 1.0
        for token in tokens:
            p *= shares[state, node, token]
            if not p:
                break
            node, state = (node * VOCAB + token) % VOCAB**2, int(THREE.next[state, token])
        if p:
            odds[tokens] = p
    assert abs(sum(odds.values()) - 1) < 1e-9
    return odds


@cache
def held_to_three(rule: DrawingRule, drafters: tuple[int, ...], masked: bool) -> list[tuple[int, list[list[int]]]]:
    """What rows with the grammar say, by budget."""
    draft = DraftConfig(n_max=3, masked=masked)
    wants = Settings(SamplerConfig(temperature=0.8), draft, 11, grammar=THREE, rule=rule, drafters=drafters)
    return sample_together(wants)[0][0]


@both
@pytest.mark.parametrize("masked", [True, False])
def test_sequences_have_the_masked_probabilities_of_the_target(rule: DrawingRule, masked: bool) -> None:
    """Through the whole loop. The drafter does not say what it drafted before: that makes no text less exact."""
    for budget, sequences in held_to_three(rule, (DRAWS,), masked):
        assert p_value(sequences, masked_odds(SamplerConfig(temperature=0.8), budget)) > 1e-3, budget


def test_several_drafters_leave_the_masked_probabilities() -> None:
    """Of those that draw and those that look up: what is looked up is not masked."""
    for budget, sequences in held_to_three("rejection", (LOOKS_UP, DRAWS), True):
        assert p_value(sequences, masked_odds(SamplerConfig(temperature=0.8), budget)) > 1e-3, budget


def test_the_chi_square_test_sees_the_probabilities_without_the_grammar() -> None:
    budget, sequences = held_to_three("rejection", (DRAWS,), True)[-1]
    free = enumerate_sequences(SamplerConfig(temperature=0.8), budget, None)
    possible = {text: free[text] for text in masked_odds(SamplerConfig(temperature=0.8), budget)}
    share = {text: p / sum(possible.values()) for text, p in possible.items()}
    assert p_value(sequences, share) < 1e-6, "to leave texts out afterwards is another distribution"


@cache
def leaning_shares(sampler: SamplerConfig) -> dict[tuple[int, ...], np.ndarray]:
    """The distribution after every text shorter than the longest, from the table of logits."""
    logits = np.asarray(tables()["target"])
    before = [text for place in range(max(BUDGETS)) for text in product(range(VOCAB), repeat=place)]
    own = [logits[sum(text[-2:-1]) * VOCAB + sum(text[-1:])] + offset_after(LEAN, text, VOCAB) for text in before]
    shares = np.exp(np.asarray(warp(jnp.asarray(own), alike(len(before), sampler)), np.float64))
    return dict(zip(before, shares / shares.sum(axis=1, keepdims=True), strict=True))


def leaning_odds(sampler: SamplerConfig, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence after the prompt (0)."""
    after, odds = leaning_shares(sampler), {}
    for tokens in product(range(VOCAB), repeat=length):
        p = math.prod(after[tokens[:place]][token] for place, token in enumerate(tokens))
        if p:
            odds[tokens] = p
    assert abs(sum(odds.values()) - 1) < 1e-9
    return odds


@both
def test_sequences_have_the_probabilities_of_the_target_that_leans(rule: DrawingRule) -> None:
    """Through the whole loop. What is left of the drafter's probabilities hangs on where its round began."""
    sampler = SamplerConfig(temperature=0.8, top_k=2)
    (drawn,) = sample_together(Settings(sampler, seed=11, leaning=LEAN, rule=rule, drafters=(DRAWS,)))[0]
    for budget, sequences in drawn:
        assert p_value(sequences, leaning_odds(sampler, budget)) > 1e-3, budget
    assert p_value(drawn[-1][1], leaning_odds(SamplerConfig(temperature=0.8), len(drawn[-1][1][0]))) < 1e-6
