"""Qwen3 and Llama: from safetensors and from llama.cpp's GGUF, against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from parameter_count import count
from tiny_models import relative_rms

import specjax
from checkpoints import ConfigError, load, write_gguf, write_hf
from specjax.models.dense import DenseConfig, Llama3Rope, parameter_shapes
from specjax.models.registry import FAMILIES

FOLDER = Path(__file__).parents[1] / "fixtures" / "dense"
NAMES = ("qwen3", "llama")
FILES = [(name, file) for name in NAMES for file in ("hf", "model.gguf")]


@pytest.mark.parametrize(("name", "file"), FILES)
def test_logits_agree_with_transformers(name: str, file: str) -> None:
    """Over the prompt, and in what comes next after it and after each token of transformers' greedy continuation."""
    model, want = specjax.load(FOLDER / name / file), np.load(FOLDER / name / "transformers.npz")
    logits = model.logits(np.concatenate([want["prompt"], want["greedy"]]))
    assert relative_rms(logits[want["logit_rows"]], want["logits"]) < 1e-5
    assert logits[len(want["prompt"]) - 1 : -1].argmax(axis=-1).tolist() == want["greedy"].tolist()


@pytest.mark.parametrize(
    ("name", "file"), [FILES[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in FILES[1:])]
)
def test_greedy_continuation_equals_that_of_transformers(name: str, file: str) -> None:
    model, want = specjax.load(FOLDER / name / file), np.load(FOLDER / name / "transformers.npz")
    assert model.generate(want["prompt"], max_tokens=64).tokens == want["greedy"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "own"), [("qwen3", True), ("llama", False)])
def test_drafting_for_a_dense_target_changes_no_token(name: str, own: bool) -> None:
    """By a model of its kind, which drafts what it says itself, and by n-grams."""
    folder = FOLDER / name
    want = np.load(folder / "transformers.npz")
    options = specjax.GenerateOptions(max_tokens=64, draft=3)
    prompts = [want["prompt"], want["prompt"][:40], want["prompt"][:3]]
    plain = specjax.load(folder / "hf").generate_batch(prompts, max_tokens=64)
    drafted = specjax.load(folder / "hf", drafter=folder / "model.gguf" if own else "ngram").generate_batch(
        prompts, options
    )
    assert [generation.tokens for generation in drafted] == [generation.tokens for generation in plain]
    stats = drafted[0].stats
    assert (stats.drafted if own else 0) <= stats.accepted
    assert stats.accepted > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_written_model_is_the_same_model(name: str, tmp_path: Path) -> None:
    first = load(FOLDER / name / "hf", FAMILIES, need_tokenizer=True)
    write_gguf(tmp_path / "model.gguf", FAMILIES, first.config, first.params, first.tokenizer)
    write_hf(tmp_path / "hf", FAMILIES, first.config, first.params, first.tokenizer)
    for path in (tmp_path / "model.gguf", tmp_path / "hf"):
        again = load(path, FAMILIES)
        jax.tree.map(np.testing.assert_array_equal, again.params, first.params)
    assert load(tmp_path / "hf", FAMILIES).config == first.config


def test_rotary_divisors_without_a_formula_cannot_become_a_config(tmp_path: Path) -> None:
    llama = load(FOLDER / "llama" / "model.gguf", FAMILIES)
    bent = llama.params["target"]["rope_factors"] * 1.125
    with pytest.raises(ConfigError, match="formula"):
        write_hf(tmp_path / "hf", FAMILIES, llama.config, {"target": {**llama.params["target"], "rope_factors": bent}})


# Parameters that the published checkpoints hold.
RELEASED = {
    "Qwen3-0.6B": (
        DenseConfig("qwen3", 151936, 28, 1024, 3072, 16, 8, 128, tied_embeddings=True),
        596_049_920,
    ),
    "Qwen3-8B": (DenseConfig("qwen3", 151936, 36, 4096, 12288, 32, 8, 128), 8_190_735_360),
    "Llama-3.1-8B": (
        DenseConfig(
            "llama", 128256, 32, 4096, 14336, 32, 8, 128,
            rope_factors=True, rope_formula=Llama3Rope(8.0, 1.0, 4.0, 8192),
        ),
        8_030_261_248,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes(name: str) -> None:
    config, parameters = RELEASED[name]
    tree = parameter_shapes(config)["target"]
    tree.pop("rope_factors", None)
    assert count(tree) == parameters
