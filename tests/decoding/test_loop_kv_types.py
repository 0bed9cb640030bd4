"""Quantized KV caches in the loop: the tokens are those of plain decoding with caches of the same types.

A token's keys are computed in windows of other sizes than when it is decoded alone. Where rounding takes a value over
the edge of a code, one value of a cache differs by a step, and tokens may part at a near-tie of their type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from scripted import CAPACITY, HEAD, Run, ScriptedMTP, ragged_prompts, run, script
from test_loop_file_drafters import drafter
from test_loop_gemma4 import ScriptedAssistant
from test_loop_step3_5 import ScriptedHeads
from tiny_models import DENSE, make_params

import checkpoints
from specjax.analysis.divergence import KV_TOLERANCE
from specjax.decoding.decoder import Decoder
from specjax.models.dense import DenseTarget
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.gemma4 import Gemma4Target
from specjax.models.protocol import Drafter, Params, Target
from specjax.models.qwen3_5 import Qwen35Target
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import Step35Target
from specjax.state import KV_TYPES, KVTypes

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = (1, 24, 65, 290)  # the last one is longer than the rings of Gemma 4 and Step-3.5
MAX_TOKENS = 40
LARGEST_LOGIT = 16  # of these models, at most
QUANTIZED = [name for name in KV_TYPES if name not in ("f32", "f16", "bf16")]


class Pair(NamedTuple):
    """A target and what drafts for it; the drafter's own caches are of the same types."""

    target: Target
    drafter: Drafter
    params: Params


def qwen3_5() -> Pair:
    return Pair(Qwen35Target(DENSE), ScriptedMTP(DENSE), make_params(DENSE))


def gemma4() -> Pair:
    """The assistant reads the target's caches."""
    target = checkpoints.load(FIXTURES / "gemma4" / "edge" / "model.gguf", FAMILIES)
    assistant = checkpoints.load(FIXTURES / "gemma4" / "edge" / "assistant", FAMILIES, need_tokenizer=False)
    drafter = ScriptedAssistant(target.config, assistant.config)
    return Pair(Gemma4Target(target.config), drafter, {**target.params, **assistant.params})


def step3_5() -> Pair:
    model = checkpoints.load(FIXTURES / "step3_5" / "flash" / "model.gguf", FAMILIES)
    return Pair(Step35Target(model.config), ScriptedHeads(model.config), dict(model.params))


def dense() -> Pair:
    """Drafted for by a model like it, with noise on its weights."""
    model = checkpoints.load(FIXTURES / "dense" / "qwen3" / "model.gguf", FAMILIES)
    target, rng = DenseTarget(model.config), np.random.default_rng(0)
    own = jax.tree.map(
        lambda x: x * (1 + 0.05 * rng.normal(size=x.shape).astype(np.float32)), dict(model.params)["target"]
    )
    return Pair(target, DraftModel(target, model.config.vocab_size), {**model.params, "draft": {"target": own}})


def eagle3() -> Pair:
    """Two layers of its own; the target is a dense one of seven layers."""
    own, params = drafter("eagle3/speculators_layers")
    return Pair(own.target, own, params)


def dflash() -> Pair:
    """One of the layers has a ring."""
    own, params = drafter("dflash/specforge_sliding")
    return Pair(own.target, own, params)


@cache
def pair(family: Callable[[], Pair]) -> Pair:
    return family()


def prompts(family: Callable[[], Pair]) -> list[list[int]]:
    return ragged_prompts(pair(family).target.config, LENGTHS, seed=1)  # type: ignore[attr-defined]


def decode(family: Callable[[], Pair], types: KVTypes, drafts: int, params: Params) -> Run:
    target, drafter, _ = pair(family)
    decoder = Decoder(target, drafter if drafts else None, "greedy", drafts, kv_types=types, margins=True)
    return run(decoder, params, prompts(family), MAX_TOKENS)


@cache
def plain(family: Callable[[], Pair], types: KVTypes) -> Run:
    return decode(family, types, 0, pair(family).params)


def assert_speculation_is_lossless(family: Callable[[], Pair], types: KVTypes, drafts: int) -> None:
    want = plain(family, types)
    correct = np.random.default_rng(drafts).integers(0, drafts + 1, (len(LENGTHS), CAPACITY))
    correct[1] = HEAD
    got = decode(family, types, drafts, script(pair(family).params, prompts(family), want.tokens, correct))
    assert want.rounds.margin is not None
    equal = 0
    for row, (ours, theirs) in enumerate(zip(got.tokens, want.tokens, strict=True)):
        parted = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
        equal += parted is None
        if parted:
            limit = LARGEST_LOGIT * max(KV_TOLERANCE[types.k], KV_TOLERANCE[types.v])
            assert want.rounds.margin[parted - 1, row, 0] < limit
    assert equal >= len(LENGTHS) - 1, "too few rows went on far enough to show anything"
    assert got.rounds.n_accepted.sum() > 5 * len(LENGTHS)


@pytest.mark.parametrize("name", ["q8_0", pytest.param("turbo3", marks=pytest.mark.slow)])
def test_greedy_speculation_equals_plain_greedy(name: str) -> None:
    assert_speculation_is_lossless(qwen3_5, KVTypes(name, name), 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", [gemma4, step3_5, dense, eagle3, dflash])
def test_greedy_speculation_equals_plain_greedy_in_every_family(family: Callable[[], Pair]) -> None:
    assert_speculation_is_lossless(family, KVTypes("q8_0", "turbo3"), 3)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [1, 2, 4])
@pytest.mark.parametrize("name", ["q8_0", "turbo3"])
def test_greedy_speculation_equals_plain_greedy_for_other_windows(name: str, drafts: int) -> None:
    assert_speculation_is_lossless(qwen3_5, KVTypes(name, name), drafts)


@pytest.mark.slow
@pytest.mark.parametrize("family", [qwen3_5, gemma4, step3_5, dense, eagle3, dflash])
@pytest.mark.parametrize("name", QUANTIZED)
def test_greedy_speculation_equals_plain_greedy_in_every_family_and_type(family: Callable[[], Pair], name: str) -> None:
    assert_speculation_is_lossless(family, KVTypes(name, name), 3)
