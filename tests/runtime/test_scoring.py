"""Texts that start alike are scored as each would be alone, and what they share is fed once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import specjax
from specjax.errors import PromptError
from specjax.runtime.scoring import score
from specjax.runtime.scoring_plan import plan

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOKENS = np.random.default_rng(0).integers(1, 250, 400).tolist()
EXAMPLES = TOKENS[:50]
QUESTIONS = [TOKENS[50:60], TOKENS[60:83], TOKENS[83:84]]
CHOICES = [[7], [7, 8], TOKENS[90:109], [300 - 60]]
PAIRS = [([*EXAMPLES, *question], choice) for question in QUESTIONS for choice in CHOICES]
PAIRS += [([5], TOKENS[100:140]), (TOKENS[200:230], [9]), ([*EXAMPLES, 3], [])]
PROMPTS, CONTINUATIONS = [prompt for prompt, _ in PAIRS], [continuation for _, continuation in PAIRS]


@cache
def rings() -> specjax.Model:
    return specjax.load(FIXTURES / "gemma4" / "dense" / "hf")


@pytest.fixture(params=["hybrid", "rings"])
def scored(request: pytest.FixtureRequest, model: specjax.Model) -> specjax.Model:
    return rings() if request.param == "rings" else model


def alone(model: specjax.Model, prompt: list[int], continuation: list[int]) -> tuple[np.ndarray, bool]:
    """From the logits of the whole text, fed at once."""
    text = [*prompt, *continuation]
    logits = model.logits([*text, *[0] * (120 - len(text))])[len(prompt) - 1 : len(text) - 1].astype(np.float64)
    logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    best = logits.argmax(axis=1) == np.array(continuation, int)
    return logprobs[np.arange(len(continuation)), continuation], bool(best.all())


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_shared_starts_change_no_score(scored: specjax.Model, rows: int) -> None:
    assert any(cluster.trunk for cluster in plan(PROMPTS, CONTINUATIONS, rows))
    got = score(scored, PROMPTS, CONTINUATIONS, rows=rows)
    for (prompt, continuation), each in zip(PAIRS, got, strict=True):
        logprobs, greedy = alone(scored, prompt, continuation)
        np.testing.assert_allclose(each.logprobs, logprobs, atol=1e-4)
        assert each.greedy == greedy
        assert each.total == pytest.approx(logprobs.sum(), abs=1e-3)


@pytest.mark.parametrize("scored", ["hybrid", pytest.param("rings", marks=pytest.mark.slow)], indirect=True)
def test_what_greedy_decoding_says_is_greedy(scored: specjax.Model) -> None:
    said = scored.generate(QUESTIONS[0], max_tokens=5, draft=0, ignore_eos=True).tokens
    other = [*said[:-1], (said[-1] + 1) % 200]
    assert [each.greedy for each in scored.score_choices(QUESTIONS[0], [said, said[:2], other])] == [True, True, False]


def test_every_text_is_fed_whole_and_shared_starts_once() -> None:
    fed = {}
    for cluster in plan(PROMPTS, CONTINUATIONS, 4):
        for batch in cluster.batches:
            assert 0 < len(batch.leaves) <= 4
            for leaf in batch.leaves:
                fed[leaf.index] = [*cluster.trunk, *batch.stems[leaf.stem], *leaf.fed, *leaf.targets[-1:]]
                assert list(leaf.targets) == CONTINUATIONS[leaf.index]
    texts = [[*prompt, *continuation] for prompt, continuation in PAIRS]
    assert [fed[index] for index in range(len(texts) - 1)] == texts[:-1]
    assert fed[len(texts) - 1] == texts[-1][:-1]  # nothing to be scored, so its last token is not fed

    few_shot = [(prompt, choice) for prompt, choice in PAIRS[:12]]
    separate = sum(len(prompt) + len(choice) - 1 for prompt, choice in few_shot)
    together = sum(cluster.num_fed for cluster in plan(*zip(*few_shot, strict=True), 4))
    assert together == len(EXAMPLES) + sum(len(question) - 1 for question in QUESTIONS) + 3 * sum(map(len, CHOICES))
    assert separate > 5 * together


def test_a_group_larger_than_a_batch_is_divided() -> None:
    (cluster,) = plan([EXAMPLES] * 10, [[token] for token in range(10)], 4)
    assert [len(batch.leaves) for batch in cluster.batches] == [4, 4, 2]
    assert not cluster.trunk
    assert all(batch.stems == (tuple(EXAMPLES[:-1]),) for batch in cluster.batches)
    assert cluster.num_fed == len(EXAMPLES) - 1 + 10  # the prompt is fed once for all of them


def test_a_text_may_fill_the_context_and_one_token_more(model: specjax.Model) -> None:
    assert len(model.score(TOKENS[:1], TOKENS[1:257])) == 256
    with pytest.raises(PromptError, match="the model's context of 256 is shorter"):
        model.score(TOKENS[:1], TOKENS[1:258])


def test_what_stands_before_every_text_stands_there_once() -> None:
    model = rings()
    assert model.tokenizer is not None
    leading = list(model.tokenizer.vocabulary.leading)
    assert model.encode("a b") == [*leading, *model.encode_further("a b")]
    assert model.score("a", " b") == model.score(model.encode("a"), model.encode_further(" b"))
