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
from one_head import assert_close, assert_drafts, assert_rounds, decode, head_over, load, prefill, reference

import specjax
from specjax.state import RollbackStrategy

FIXTURES = Path(__file__).parents[1] / "fixtures"
ONE_ROUND = ("qwen3_5/dense", "qwen3_5/moe", "qwen3_5/tied")
WITH_HEAD = (*ONE_ROUND, "qwen3_next/a3b", "qwen3_next/tied", "glm4_moe/large", "glm4_moe/air")
MODELS = (*WITH_HEAD, "glm4_moe/plain")
FILES = ("hf", "model.gguf")
USUAL = ("qwen3_5/dense", "qwen3_5/moe", "qwen3_next/a3b", "glm4_moe/large", "glm4_moe/air")
"""Those that are not left to the slow tests: one of every form of layers and heads."""


def models(names: Sequence[str]) -> pytest.MarkDecorator:
    """The test for each of these models."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in USUAL)) for name in names]
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
    want = of(name, "transformers")
    logits, hidden, _ = prefill(*load(FIXTURES / name / file), want["prompt"])
    assert_close(hidden, want["hidden"])
    assert_close(logits[want["logit_rows"]], want["logits"])
    assert_close(logits[want["logit_rows"]], of(name, "llama_cpp")["logits"])


@pytest.mark.parametrize("file", FILES)
@models(MODELS)
def test_greedy_continuation_equals_that_of_transformers(name: str, file: str) -> None:
    want = of(name, "transformers")
    config, params = load(FIXTURES / name / file)
    logits, _, state = prefill(config, params, want["prompt"])
    got = decode(config, params, jnp.argmax(logits[-1]), state, len(want["greedy"]))
    assert got.tolist() == want["greedy"].tolist()


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


@models(ONE_ROUND)
def test_drafting_agrees_with_llama_cpp(name: str) -> None:
    config, params = load(FIXTURES / name / "model.gguf")
    want = {key: value[None] for key, value in of(name, "llama_cpp").items() if key.startswith(("pending", "draft"))}
    _, _, state = prefill(config, params, of(name, "transformers")["prompt"])
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
    prompt = of(name, "transformers")["prompt"]
    assert_rounds(*load(FIXTURES / name / file), prompt, of(name, "llama_cpp"), rollback)
