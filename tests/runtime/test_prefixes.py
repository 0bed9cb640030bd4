"""Prompts that start alike are computed once, and say what they say from an empty state: same tokens, same drafts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import specjax
from specjax.runtime.engine import Engine
from specjax.runtime.prefixes import LEAST_SHARED, PrefixCache, worth_sharing
from specjax.runtime.request import Job

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = {
    "caches": ("dense/qwen3/hf", "ngram", 3),
    "recurrent-with-head": ("qwen3_5/dense/hf", None, 3),
    "several": ("qwen3_5/dense/hf", ("ngram", "mtp"), 3),
    "rings-with-heads": ("step3_5/flash/hf", None, 2),
    "assistant": ("gemma4/edge/hf", "gemma4/edge/assistant", 2),
}
SHARED, MORE = 100, 24


@cache
def model(kind: str) -> specjax.Model:
    target, drafter, _ = MODELS[kind]
    return specjax.load(FIXTURES / target, drafter=FIXTURES / drafter if drafter and "/" in drafter else drafter)


def options(kind: str) -> specjax.GenerateOptions:
    return specjax.GenerateOptions(max_tokens=MORE, draft=MODELS[kind][2], ignore_eos=True, margins=True)


def engine(kind: str, prefix_bytes: int) -> Engine:
    return model(kind).engine([options(kind)], seats=2, slots=512, prefix_bytes=prefix_bytes)


def said(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 60, length).tolist()


def submit(running: Engine, kind: str, prompt: list[int]) -> Job:
    return running.submit(model(kind).request(prompt, options(kind)))


def finish(running: Engine) -> None:
    for _ in running.run():
        pass


def prompts() -> list[list[int]]:
    shared = said(0, SHARED)
    return [[*shared, *said(1, 20)], [*shared, *said(2, 70)], [*shared[:50], *said(3, 9)], [*shared, *said(4, 5)]]


def assert_same(warm: Job, cold: Job) -> None:
    assert min(cold.margins) > 1e-4, "near-ties: equality would hang on rounding"
    assert warm.tokens == cold.tokens
    assert (warm.stats.drafted, warm.stats.accepted) == (cold.stats.drafted, cold.stats.accepted)


@cache
def cold(kind: str, prompt: tuple[int, ...]) -> Job:
    running = engine(kind, 0)
    job = submit(running, kind, list(prompt))
    finish(running)
    assert job.reused == 0
    return job


SLOW = ("several", "assistant", "rings-with-heads")
"""Kinds of states that can be cut, or copied, as the other two."""
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in MODELS]
)


@each_kind
def test_prompts_that_start_alike_are_fed_once_and_drafted_for_as_ever(kind: str) -> None:
    running = engine(kind, 1 << 30)
    jobs = [submit(running, kind, prompt) for prompt in [*prompts(), prompts()[0]]]
    finish(running)
    assert [job.reused for job in jobs] == [0, SHARED, 50, SHARED, len(prompts()[0])]
    for job in jobs:
        assert_same(job, cold(kind, job.request.prompt))
    assert (running.prefixes.hits, running.prefixes.tokens) == (4, sum(job.reused for job in jobs))


@each_kind
def test_a_text_goes_on_from_its_end_also_after_rejected_drafts(kind: str) -> None:
    running = engine(kind, 1 << 30)
    first = submit(running, kind, prompts()[0])
    finish(running)
    assert first.stats.accepted < first.stats.drafted, "the drafts of this test must be rejected now and then"
    text = [*first.request.prompt, *first.tokens]
    later = submit(running, kind, [*text, *said(9, 7)])
    finish(running)
    assert later.reused == len(text) - 1
    assert_same(later, cold(kind, later.request.prompt))


def test_the_budget_holds_and_nothing_is_kept_without_one() -> None:
    kind = "recurrent-with-head"
    running = engine(kind, 1 << 30)
    for prompt in prompts():
        submit(running, kind, prompt)
    finish(running)
    budget = running.prefixes.used_bytes // 2
    smaller = engine(kind, budget)
    for _ in range(2):
        for prompt in prompts():
            submit(smaller, kind, prompt)
        finish(smaller)
        assert 0 < smaller.prefixes.used_bytes <= budget
    nothing = PrefixCache(0)
    assert nothing.find(prompts()[0]) is None
    assert not nothing.expects(prompts()[0], prompts())
    assert nothing.stops(prompts()[0], prompts()) == ()


def test_prompts_are_worth_sharing_only_if_they_start_alike() -> None:
    shared = said(0, LEAST_SHARED)
    assert worth_sharing([[1], [*shared, 7], [2], [*shared, 8]])
    assert not worth_sharing([[1], [*shared[1:], 7], [2], [*shared[1:], 8]])
    assert not worth_sharing([[*shared, 7]])


@pytest.mark.slow
def test_a_batch_shares_what_its_prompts_have_in_common() -> None:
    kind = "recurrent-with-head"
    results = model(kind).generate_batch(prompts(), options(kind))
    for result in results:
        assert result.tokens == cold(kind, tuple(result.prompt_tokens)).tokens
