"""A model that is split over devices says what it says on one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import relative_rms

import specjax

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]

LENGTHS = 20, 3, 28  # such that the second piece is as wide as the first, and runs by the same programs
PROMPTS = [np.random.default_rng(seed).integers(5, 250, length).tolist() for seed, length in enumerate(LENGTHS)]
LENGTH = {"max_tokens": 24, "ignore_eos": True}
GREEDY = [("odd", "Q4_K", "1x4")]
NAMES = ("odd", "odd moe", "qwen3", "llama", "hybrid", "hybrid tied", "moe", "gemma4", "gemma4 edge", "gemma4 moe")
LATER = [
    (name, weights, mesh)
    for name in NAMES
    for weights in ("F32", "Q8_0", "Q4_K")
    for mesh in ("1x2", "1x4", "2x2")
    if (name, weights, mesh) not in GREEDY and not (name.startswith("gemma4") and weights == "Q4_K")
]
FIXTURES = Path(__file__).parents[1] / "fixtures"
SAMPLERS: dict[str, Any] = {
    "temperature": [0.0, 0.8, 0.9],
    "top_k": [0, 20, 0],
    "top_p": [1.0, 0.9, 1.0],
    "min_p": [0.0, 0.0, 0.02],
    "seed": [0, 1, 2],
}


def drafts_of(model: specjax.Model) -> int:
    return 3 if model.drafter else 0


@pytest.mark.parametrize(
    ("name", "weights", "mesh"), [*GREEDY, *(pytest.param(*case, marks=pytest.mark.slow) for case in LATER)]
)
def test_greedy_tokens_are_those_of_one_device(load: Load, name: str, weights: str, mesh: str) -> None:
    one, split = load(name, weights), load(name, weights, mesh)
    wanted, got = (model.generate(PROMPTS[0], draft=drafts_of(model), **LENGTH) for model in (one, split))
    assert got.tokens == wanted.tokens
    assert len(set(got.tokens)) > 1
    assert got.stats.accepted == wanted.stats.accepted > 0 or not one.drafter
    assert relative_rms(split.next_logits(PROMPTS[2]), one.next_logits(PROMPTS[2])) < 1e-4


DRAWN = [
    ("moe", "Q8_0", "2x2", "rejection", "snapshot"),
    *(
        pytest.param("hybrid", "F32", *each, "replay", marks=pytest.mark.slow)
        for each in (("1x2", "rejection"), ("1x2", "coupled"), ("2x2", "coupled"), ("1x2", "block"))
    ),
]


@pytest.mark.parametrize(("name", "weights", "mesh", "accept", "rollback"), DRAWN)
def test_drawn_tokens_and_their_probabilities_are_those_of_one_device(
    load: Load, name: str, weights: str, mesh: str, accept: Any, rollback: Any
) -> None:
    """Three prompts with settings of their own. On two rows of devices they take four seats, two on each."""
    options = {"draft": 3, "accept": accept, "rollback": rollback, "logprobs": 3, "trace": True, **LENGTH, **SAMPLERS}
    wanted, got = (load(name, weights, each).generate_batch(PROMPTS, **options) for each in (None, mesh))
    assert any(each.stats.accepted for each in wanted)
    for want, own in zip(wanted, got, strict=True):
        assert own.tokens == want.tokens
        assert own.stats.accepted == want.stats.accepted
        assert want.logprobs is not None
        assert own.logprobs is not None
        for one, two in zip(want.logprobs, own.logprobs, strict=True):
            assert [token for token, _ in two.top] == [token for token, _ in one.top]
            assert two.logprob == pytest.approx(one.logprob, rel=1e-4)
        assert want.trace is not None
        assert own.trace is not None
        for name in ("p", "q", "confidence", "entropy", "margin"):
            np.testing.assert_allclose(getattr(own.trace, name), getattr(want.trace, name), rtol=2e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"rollback": "snapshot"}, {"kv_type_k": "q8_0", "kv_type_v": "turbo3"}], ids=str)
def test_other_states_say_the_same(load: Load, options: dict[str, Any]) -> None:
    wanted, got = (
        load("hybrid", mesh=mesh).generate(PROMPTS[0], draft=3, **LENGTH, **options) for mesh in (None, "1x2")
    )
    assert got.tokens == wanted.tokens


def test_texts_score_as_on_one_device(load: Load) -> None:
    wanted, got = (load("hybrid", mesh=mesh).score_batch(PROMPTS, PROMPTS[::-1]) for mesh in (None, "1x2"))
    for want, own in zip(wanted, got, strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-4)


def test_hidden_states_are_those_of_one_device(load: Load) -> None:
    wanted, got = (load("hybrid", mesh=mesh).features(PROMPTS[2], [0, 2]) for mesh in (None, "1x2"))
    assert relative_rms(got.final_hidden, wanted.final_hidden) < 1e-5
    assert relative_rms(got.layer_inputs[2], wanted.layer_inputs[2]) < 1e-5


OTHER_FAMILIES = ("glm4_moe/air/model.gguf", "step3_5/flash/model.gguf", "qwen3_next/tied/hf")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_FAMILIES)
def test_other_families_say_the_same(name: str) -> None:
    one, split = (specjax.load(FIXTURES / name, mesh=mesh) for mesh in (None, "1x2"))
    wanted, got = (model.generate(PROMPTS[0], draft=2, **LENGTH) for model in (one, split))
    assert got.tokens == wanted.tokens
    assert relative_rms(split.next_logits(PROMPTS[2]), one.next_logits(PROMPTS[2])) < 1e-4


@pytest.mark.parametrize(
    ("name", "drafter"), [("qwen3", "qwen3"), pytest.param("gemma4", "assistant", marks=pytest.mark.slow)]
)
def test_drafters_of_files_are_split_too(load: Load, name: str, drafter: str) -> None:
    """A model that drafts for itself is always right: all drafts stand on four devices, too."""
    one, split = (load(name, mesh=mesh, drafter=drafter) for mesh in (None, "1x4"))
    wanted, got = (model.generate(PROMPTS[0], draft=3, **LENGTH) for model in (one, split))
    assert got.tokens == wanted.tokens
    assert got.stats.accepted == wanted.stats.accepted
    assert got.stats.acceptance == 1 or name != drafter
