"""Prompts through `Model`: real chunk sizes, the end of the context, and errors before anything runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from scripted import ragged_prompts
from tiny_models import DENSE, make_params

from specjax.errors import PromptError, SpecjaxError
from specjax.models import registry
from specjax.runtime.generation import Generation
from specjax.runtime.model import Model

LENGTHS = (16, 17, 63, 64, 65, 255, 256, 257)
CONTEXT = 264
MAX_TOKENS = 20
PROMPTS = ragged_prompts(DENSE, LENGTHS, seed=3)


@cache
def make_model() -> Model:
    config = replace(DENSE, context_length=CONTEXT)
    target, drafter = registry.build(config)
    return Model(config, make_params(DENSE), None, target, drafter, Path("tiny.gguf"))


@cache
def generations(draft: int) -> list[Generation]:
    return make_model().generate_batch(PROMPTS, max_tokens=MAX_TOKENS, draft=draft, margins=True)


@pytest.mark.slow
def test_speculation_equals_plain_decoding_up_to_the_end_of_the_context() -> None:
    plain, speculative = generations(0), generations(3)
    assert min(min(result.margins or []) for result in plain) > 5e-4, "near-ties: equality would hang on rounding"
    for length, want, got in zip(LENGTHS, plain, speculative, strict=True):
        assert got.tokens == want.tokens, length
        assert len(got.tokens) == min(MAX_TOKENS, CONTEXT - length)
        assert got.finish_reason == want.finish_reason == ("length" if length < 255 else "context")


@pytest.mark.parametrize("length", [16, 64])
def test_a_prompt_as_long_as_a_chunk_is_one_chunk_and_gives_the_tokens_of_the_batch(length: int) -> None:
    row = LENGTHS.index(length)
    alone = make_model().generate(PROMPTS[row], max_tokens=MAX_TOKENS, draft=3, margins=True)
    assert alone.tokens == generations(3)[row].tokens


def test_counts_and_margins_of_a_result_belong_to_its_tokens() -> None:
    for plain, result in zip(generations(0), generations(3), strict=True):
        assert result.margins is not None
        assert plain.margins is not None
        assert result.margins == pytest.approx(plain.margins, rel=1e-3, abs=1e-4)
        assert result.stats.tokens == len(result.tokens) - 1
        assert result.stats.tokens == result.stats.rounds + result.stats.accepted
        assert plain.stats.rounds == plain.stats.tokens
        assert plain.stats.drafted == 0


def test_one_token_is_the_shortest_generation() -> None:
    results = make_model().generate_batch(PROMPTS, max_tokens=1, draft=3, margins=True)
    assert [result.tokens for result in results] == [result.tokens[:1] for result in generations(0)]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * CONTEXT, "264 tokens; the model's context of 264 must also hold 1 more"),
        ([1, 64, -1], r"outside the vocabulary of 64 \(0 to 63\): \[64, -1\]"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(prompt: list[int], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        make_model().generate(prompt)
    if prompt:
        with pytest.raises(PromptError, match="prompt 1"):
            make_model().generate_batch([[1], prompt])


def test_drafts_without_a_head_are_refused() -> None:
    headless = replace(make_model(), drafter=None)
    with pytest.raises(SpecjaxError, match="has no MTP head"):
        headless.generate([1], draft=2)
