"""What a divergence says of two tokens, where the logits at their position are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from wants import alike

from pallas_kernels.matmul import Activations, from_blocks
from specjax.analysis.divergence import Divergence, find_divergence
from specjax.decoding.grammar import Grammar
from specjax.decoding.random import Purpose, gumbel
from specjax.decoding.sampling import sample_tokens
from specjax.runtime.options import GenerateOptions

LOGITS = np.array([4, 2.9, 2.5, 2.5 - 1e-4, -1], np.float32)
LAST = 3  # the token at the edge of the filters below
PROMPT = [1, 2]
T = 0.8
MASS = float(softmax(LOGITS.astype(np.float64) / T)[:LAST].sum())
RATIO = float(np.exp((LOGITS[LAST] - LOGITS[0]) / T))


def find(options: GenerateOptions, here: int, there: int, sequence: int = 0) -> Divergence:
    weight = {"target": {"embed": {"weight": np.zeros(1, np.float32)}}}
    model: Any = SimpleNamespace(
        next_logits=lambda prefix, kv_types: LOGITS, grammar=lambda options: None, params=weight
    )
    found = find_divergence(model, PROMPT, options, [here], [there], sequence=sequence)
    assert found is not None
    return found


def draw(options: GenerateOptions, sequence: int = 0) -> int:
    where = {"sequence": jnp.array([sequence]), "position": jnp.array([len(PROMPT)])}
    wants = alike(1, options.sampler, seed=options.seed)
    return int(sample_tokens(jnp.asarray(LOGITS[None]), settings=wants, **where)[0])


def draws_of_last() -> GenerateOptions:
    """Options under which the last token wins, if nothing filters it out."""
    options = (GenerateOptions(temperature=T, accept="coupled", seed=seed) for seed in range(1000))
    return next(choice for choice in options if draw(choice) == LAST)


@pytest.mark.parametrize(
    ("filters", "margin"),
    [
        ({"top_k": 3}, 1e-4),
        ({"top_p": MASS - 1e-5}, T * 1e-5 / (MASS * (1 - MASS))),
        ({"min_p": RATIO * 1.0001}, T * 1e-4),
        ({"top_k": 4, "top_p": MASS - 0.01, "min_p": 0.01}, 1e-4),  # to change places with the last one kept is enough
    ],
)
def test_a_token_at_the_edge_of_a_filter_is_a_near_tie(filters: dict[str, Any], margin: float) -> None:
    options = replace(draws_of_last(), **filters)
    found = find(options, draw(options), LAST)
    assert draw(options) != LAST
    assert found.filtered
    assert found.near_tie
    assert found.margin == pytest.approx(margin, rel=0.1)
    assert "filtered out" in str(found)


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.6}, {"min_p": 0.3}])
def test_a_token_far_beyond_a_filter_is_none(filters: dict[str, Any]) -> None:
    options = replace(draws_of_last(), **filters)
    found = find(options, draw(options), LAST)
    assert found.filtered
    assert found.margin > 0.1
    assert not found.near_tie


def test_a_token_at_the_edge_of_a_filter_must_also_have_won() -> None:
    options = GenerateOptions(temperature=T, top_k=3, accept="coupled", seed=0)
    noise = np.asarray(gumbel(0, jnp.array([0]), jnp.array([len(PROMPT)]), Purpose.TOKEN, len(LOGITS))[0])
    kept, scores = draw(options), LOGITS + T * noise
    assert scores[kept] - scores[LAST] > 0.1
    assert find(options, kept, LAST).margin == pytest.approx(scores[kept] - scores[LAST], rel=1e-5)


@pytest.mark.parametrize("seed", [5, 2**31, 2**32 - 1])
def test_the_margin_of_a_draw_has_the_noise_of_its_seed_and_sequence(seed: int) -> None:
    options = GenerateOptions(temperature=T, accept="coupled", seed=seed)
    for sequence in (0, 7):
        where = jnp.array([sequence]), jnp.array([len(PROMPT)])
        scores = LOGITS + T * np.asarray(gumbel(jnp.uint32(seed), *where, Purpose.TOKEN, len(LOGITS))[0])
        found = find(options, 0, 1, sequence)
        assert not found.filtered
        assert found.margin == pytest.approx(abs(scores[0] - scores[1]), rel=1e-5)


@pytest.mark.parametrize("seed", [2**31 - 1, 2**31, 2**32 - 1])
def test_the_noise_of_any_seed_can_be_looked_up(seed: int) -> None:
    options = GenerateOptions(temperature=T, accept="coupled", seed=seed)
    where = jnp.array([0]), jnp.array([len(PROMPT)])
    scores = LOGITS + T * np.asarray(gumbel(jnp.uint32(seed), *where, Purpose.TOKEN, len(LOGITS))[0])
    assert find(options, 0, 1).margin == pytest.approx(abs(scores[0] - scores[1]), rel=1e-5)


@pytest.mark.parametrize(("act", "near_tie"), [("a8", True), ("a16", False)])
def test_how_activations_are_rounded_decides_what_is_a_tie(act: Activations, near_tie: bool) -> None:
    """Also where a quantized matrix is the embedding."""
    packed = from_blocks(np.zeros((1, 34), np.uint8), "Q8_0", act)
    logits = np.array([4, 3.96, 0], np.float32)
    model: Any = SimpleNamespace(
        next_logits=lambda prefix, kv_types: logits,
        grammar=lambda options: None,
        params={"target": {"embed": {"weight": packed}}},
    )
    found = find_divergence(model, PROMPT, GenerateOptions(), [0], [1])
    assert found is not None
    assert found.relative_margin == pytest.approx(0.01)
    assert found.near_tie == near_tie


def test_what_a_grammar_leaves_is_what_the_filters_see() -> None:
    """Top-k keeps the two best of the tokens that may come, although better ones are forbidden."""
    logits = np.array([9, 8, 2, 2 - 1e-5, 0], np.float32)
    allowed = Grammar(np.array([[-1, 0]], np.int32), np.array([0, 0, 1, 1, 1], np.int32))
    weight = {"target": {"embed": {"weight": np.zeros(1, np.float32)}}}
    options = GenerateOptions(temperature=0.01, top_k=2, accept="coupled", regex=".")
    found = []
    for grammar in (allowed, None):
        model: Any = SimpleNamespace(
            next_logits=lambda prefix, kv_types: logits, grammar=lambda options, own=grammar: own, params=weight
        )
        found.append(find_divergence(model, PROMPT, options, [2], [3]))
    assert [each is not None and each.filtered for each in found] == [False, True]
