"""Models with one MTP head against transformers and llama.cpp, on the same random weights.

tests/fixtures/PROVENANCE.md says how the references were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_head import (
    after_prompt,
    assert_close,
    assert_drafts,
    assert_rounds,
    decode,
    head_over,
    load,
    prefill,
    reference,
)

import specjax
from specjax.state import RollbackStrategy

FIXTURES = Path(__file__).parents[1] / "fixtures"
ONE_ROUND = ("qwen3_5/dense", "qwen3_5/moe", "qwen3_5/tied")
WITH_HEAD = (*ONE_ROUND, "qwen3_next/a3b", "qwen3_next/tied", "glm4_moe/large", "glm4_moe/air")
MODELS = (*WITH_HEAD, "glm4_moe/plain")
FILES = ("hf", "model.gguf")
USUAL = ("qwen3_5/dense", "qwen3_5/moe", "qwen3_next/a3b", "glm4_moe/large", "glm4_moe/air")
"""Those that are not left to the slow tests: one of every form of layers and heads."""
ONE_OF_A_FAMILY = ("qwen3_5/dense", "qwen3_next/a3b", "glm4_moe/air")
"""Enough where the trunk and the head over a prompt are known to agree."""


def models(names: Sequence[str], usual: Sequence[str] = USUAL) -> pytest.MarkDecorator:
    """The test for each of these models."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in usual)) for name in names]
    )


def of(name: str, program: str) -> dict[str, np.ndarray]:
    """What "transformers" or "llama_cpp" computed; the prompt is with the former."""
    return reference(FIXTURES / name / f"{program}.npz")


@pytest.mark.parametrize("name", MODELS)
def test_gguf_and_safetensors_give_the_same_config_and_parameters(name: str) -> None:
    (gguf_config, gguf), (hf_config, hf) = (load(FIXTURES / name / file) for file in ("model.gguf", "hf"))
    assert gguf_config == hf_config
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), gguf, hf)


@pytest.mark.parametrize("file", FILES)
@models(MODELS)
def test_the_trunk_agrees_with_transformers_and_llama_cpp(name: str, file: str) -> None:
    """Over the prompt, and in what comes next after it and after each token of transformers' greedy continuation."""
    want = of(name, "transformers")
    prompt, greedy = want["prompt"], want["greedy"]
    tokens = np.concatenate([prompt, greedy])
    logits, hidden, _ = prefill(*load(FIXTURES / name / file), tokens, len(tokens), "replay")
    assert_close(hidden[: len(prompt)], want["hidden"])
    assert_close(logits[want["logit_rows"]], want["logits"])
    assert_close(logits[want["logit_rows"]], of(name, "llama_cpp")["logits"])
    assert logits[len(prompt) - 1 : -1].argmax(axis=-1).tolist() == greedy.tolist()


@pytest.mark.parametrize("file", FILES)
@models(MODELS, usual=ONE_OF_A_FAMILY)
def test_greedy_continuation_equals_that_of_transformers(name: str, file: str) -> None:
    """Token by token, where what was verified after each is rolled back."""
    want = of(name, "transformers")
    config, params = load(FIXTURES / name / file)
    assert decode(config, params, *after_prompt(config, params, want), len(want["greedy"])) == want["greedy"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_next/tied", "glm4_moe/large"])
def test_speculation_changes_nothing(name: str) -> None:
    want = of(name, "transformers")
    model = specjax.load(FIXTURES / name / "model.gguf")
    generation = model.generate(want["prompt"].tolist(), max_tokens=len(want["greedy"]))
    assert generation.tokens == want["greedy"].tolist()
    assert generation.stats.drafted > 0


@models(WITH_HEAD)
def test_the_head_over_a_prompt_agrees_with_llama_cpp(name: str) -> None:
    common, want = of(name, "transformers"), of(name, "llama_cpp")
    config, params = load(FIXTURES / name / "model.gguf")
    hidden, logits = head_over(config, params, common["prompt"], common["hidden"])
    assert_close(hidden, want["mtp_hidden"])
    assert_close(logits[common["logit_rows"]], want["mtp_logits"])


@models(ONE_ROUND, usual=ONE_OF_A_FAMILY)
def test_drafting_agrees_with_llama_cpp(name: str) -> None:
    config, params = load(FIXTURES / name / "model.gguf")
    want = {key: value[None] for key, value in of(name, "llama_cpp").items() if key.startswith(("pending", "draft"))}
    _, state = after_prompt(config, params, of(name, "transformers"))
    assert_drafts(config, params, jnp.asarray(want["pending"]), state, want, 0)


@pytest.mark.parametrize(
    ("name", "file", "rollback"),
    [
        ("qwen3_next/a3b", "hf", "replay"),
        pytest.param("qwen3_next/a3b", "hf", "snapshot", marks=pytest.mark.slow),
        pytest.param("qwen3_next/tied", "model.gguf", "replay", marks=pytest.mark.slow),
        pytest.param("qwen3_next/tied", "model.gguf", "snapshot", marks=pytest.mark.slow),
        pytest.param("glm4_moe/large", "hf", "replay", marks=pytest.mark.slow),
        ("glm4_moe/air", "model.gguf", "replay"),
    ],
)
def test_rounds_agree_with_llama_cpp(name: str, file: str, rollback: RollbackStrategy) -> None:
    config, params = load(FIXTURES / name / file)
    after = after_prompt(config, params, of(name, "transformers"), rollback)
    assert_rounds(config, params, *after, of(name, "llama_cpp"))
