"""The model that ships with the package: it loads, its head earns its keep, and drafting does not change its text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import specjax
from specjax.runtime.loading import bundled_model

PROMPTS = Path(__file__).parents[1] / "benchmarks" / "prompts.jsonl"
LONGEST = 64  # tokens of a prompt
MAX_BYTES = 20e6


@pytest.fixture(scope="module")
def model() -> specjax.Model:
    return specjax.load()


@pytest.fixture(scope="module")
def prompts(model: specjax.Model) -> list[list[int]]:
    """Tokens of held-out text, of several lengths that one piece takes, all rows together."""
    texts = [model.encode(json.loads(line)["prompt"]) for line in PROMPTS.read_text().splitlines()]
    return [text[: LONGEST - row // 2] for row, text in enumerate(texts)]


@pytest.fixture(scope="module")
def drafted(model: specjax.Model, prompts: list[list[int]]) -> list[specjax.Generation]:
    return model.generate_batch(prompts, max_tokens=96, draft=3, ignore_eos=True, margins=True)


def test_bundled_file_is_small_and_has_its_head(model: specjax.Model) -> None:
    assert bundled_model().stat().st_size <= MAX_BYTES
    assert model.drafter is not None
    assert model.tokenizer is not None


def test_greedy_speculation_equals_plain_greedy_on_held_out_prompts(
    model: specjax.Model, prompts: list[list[int]], drafted: list[specjax.Generation]
) -> None:
    plain = model.generate_batch(prompts, max_tokens=96, draft=0, ignore_eos=True, margins=True)
    assert len({len(each.prompt_tokens) for each in drafted}) > 5
    for with_drafts, without in zip(drafted, plain, strict=True):
        pairs = enumerate(zip(with_drafts.tokens, without.tokens, strict=True))
        first = next((index for index, (a, b) in pairs if a != b), None)
        assert first is None or without.margins[first] < 1e-3, "they part at more than a near-tie"


def test_head_brings_two_tokens_per_round_on_held_out_prompts(drafted: list[specjax.Generation]) -> None:
    tokens = sum(result.stats.tokens for result in drafted)
    rounds = sum(result.stats.rounds for result in drafted)
    assert tokens / rounds >= 2.0


def test_text_is_made_of_python(drafted: list[specjax.Generation]) -> None:
    text = "".join(result.text for result in drafted)
    for word in ("self.", "def ", "return", "if ", "    "):
        assert word in text
