"""Small trained models of the families that are not bundled: drafts earn their keep, and change nothing.

A Gemma-4-style target with an assistant, and a Step-3.5-style model with three heads, both with sliding layers whose
rings go round in every row. How they were made: tests/fixtures/PROVENANCE.md.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import specjax
from specjax.decoding.decoder import LONGEST_CHUNK
from specjax.state import KVCache

FIXTURES = Path(__file__).parent / "fixtures" / "trained"
PROMPTS = Path(__file__).parents[1] / "benchmarks" / "prompts.jsonl"  # from modules that were held out of training
BATCH = 8
LONGEST = 192  # tokens of a prompt
MAX_TOKENS = 192
MAX_BYTES = 1.5e6
NEAR_TIE = 1e-3
MODELS = ("gemma4", "step3_5")
MOST_DRAFTS = {"gemma4": 4, "step3_5": 3}


def slow(name: str, drafts: int) -> Any:
    return pytest.param(name, drafts, marks=pytest.mark.slow)


MOST = list(MOST_DRAFTS.items())
FEWER = [slow(name, drafts) for name, most in MOST for drafts in range(1, most)]
IN_BATCH = ALONE = [*FEWER, ("gemma4", MOST_DRAFTS["gemma4"]), slow("step3_5", MOST_DRAFTS["step3_5"])]
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 7, "accept": "coupled"}


@cache
def load(name: str) -> specjax.Model:
    assistant = FIXTURES / f"{name}-assistant.gguf"
    return specjax.load(FIXTURES / f"{name}.gguf", drafter=assistant if assistant.exists() else None)


@cache
def prompts(name: str) -> list[list[int]]:
    """Tokens of held-out text, cut so that one chunk takes them, and pieces of one size all rows together."""
    texts = [load(name).encode(json.loads(line)["prompt"]) for line in PROMPTS.read_text().splitlines()]
    long = [text for text in texts if len(text) >= LONGEST]
    return [text[: LONGEST - row] for row, text in enumerate(long[:BATCH])]


@cache
def batch(name: str, drafts: int, **sampling: Any) -> list[specjax.Generation]:
    options = {"max_tokens": MAX_TOKENS, "draft": drafts, "ignore_eos": True, "margins": True}
    return load(name).generate_batch(prompts(name), **options, **sampling)


def assert_same_text(drafted: specjax.Generation, plain: specjax.Generation) -> None:
    """Equal tokens, or none further than a near-tie: the first row may not differ for any other reason."""
    assert plain.margins is not None
    pairs = enumerate(zip(drafted.tokens, plain.tokens, strict=True))
    first = next((index for index, (a, b) in pairs if a != b), None)
    assert first is None or plain.margins[first] < NEAR_TIE, f"they part at token {first}, which is no near-tie"


@pytest.mark.parametrize("name", MODELS)
def test_files_are_small(name: str) -> None:
    files = list(FIXTURES.glob(f"{name}*.gguf"))
    assert files
    assert all(file.stat().st_size < MAX_BYTES for file in files)


@pytest.mark.parametrize("name", ["gemma4", pytest.param("step3_5", marks=pytest.mark.slow)])
def test_prompts_are_ragged_and_every_rows_rings_go_round(name: str) -> None:
    target = load(name).target
    layers = target.init_layers(1, 2 * LONGEST_CHUNK, rows=5, chunk=LONGEST_CHUNK, rollback="replay")
    rings = [cache for cache in layers if isinstance(cache, KVCache) and cache.window is not None]
    assert 0 < len(rings) < len(layers)
    lengths = [len(row.prompt_tokens) for row in batch(name, 0)]
    assert len(set(lengths)) == BATCH
    assert min(lengths) + MAX_TOKENS > max(ring.capacity for ring in rings)


@pytest.mark.parametrize(("name", "drafts"), IN_BATCH)
def test_greedy_speculation_equals_plain_greedy_on_held_out_prompts(name: str, drafts: int) -> None:
    for drafted, plain in zip(batch(name, drafts), batch(name, 0), strict=True):
        assert_same_text(drafted, plain)


@pytest.mark.parametrize(("name", "drafts"), ALONE)
def test_a_prompt_alone_is_continued_as_in_the_batch(name: str, drafts: int) -> None:
    alone = load(name).generate(prompts(name)[0], max_tokens=MAX_TOKENS, draft=drafts, ignore_eos=True)
    assert_same_text(alone, batch(name, 0)[0])


@pytest.mark.parametrize(("name", "drafts"), IN_BATCH)
def test_drafts_bring_more_than_one_and_a_half_tokens_per_round(name: str, drafts: int) -> None:
    results = batch(name, drafts)
    assert sum(row.stats.tokens for row in results) > 1.5 * sum(row.stats.rounds for row in results)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_coupled_speculation_equals_plain_sampling(name: str) -> None:
    drafted, plain = batch(name, MOST_DRAFTS[name], **SAMPLED), batch(name, 0, **SAMPLED)
    assert [row.tokens for row in drafted] == [row.tokens for row in plain]
    assert sum(row.stats.accepted for row in drafted) > 0


def test_more_drafts_than_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="4 draft tokens are asked for; this drafter makes at most 3"):
        load("step3_5").generate(prompts("step3_5")[0], max_tokens=4, draft=4)
