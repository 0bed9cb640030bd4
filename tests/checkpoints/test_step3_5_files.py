"""Step-3.5 files: rotary factors, files that lack some of their heads, and Step-3.7."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_models import FIXTURES, assert_same_model, load
from safetensors.numpy import load_file, save_file

import checkpoints
import specjax
from checkpoints import ConfigError, MissingMTPWarning, TensorMismatchError
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import Llama3Rope
from specjax.models.step3_5.gguf import config_to_gguf

FLASH, PLAIN = "step3_5/flash", "step3_5/plain"
DECLARED = 3


def test_rotary_factors_without_their_formula_go_to_gguf_only(tmp_path: Path) -> None:
    flash = load(FLASH, "model.gguf")
    bent = flash.params["target"]["rope_factors"] * 1.125
    with pytest.raises(ConfigError, match="by a formula"):
        checkpoints.write_hf(
            tmp_path, FAMILIES, flash.config, {"target": {**flash.params["target"], "rope_factors": bent}}
        )
    assert not list(tmp_path.iterdir())


def test_the_formula_leaves_fast_rotations_and_divides_slow_ones() -> None:
    formula = Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=1024)
    factors = formula.factors(theta=1e4, width=64)
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert list(factors) == sorted(factors)
    assert any(1 < factor < 8 for factor in factors)


def write_with_heads(path: Path, heads: int) -> Path:
    """The flash model, declaring all of its heads, with the tensors of the first few."""
    whole = load(FLASH, "model.gguf")
    assert whole.tokenizer is not None
    config = replace(whole.config, heads=whole.config.heads[:heads])
    params = {"target": whole.params["target"]}
    if heads:
        params["mtp"] = {f"heads_{index}": whole.params["mtp"][f"heads_{index}"] for index in range(heads)}
    checkpoints.write_gguf(path, FAMILIES, config, params, whole.tokenizer, metadata=config_to_gguf(whole.config))
    return path


@pytest.mark.parametrize(
    ("heads", "consequence"),
    [
        (0, "the trunk alone: nothing can be drafted"),
        pytest.param(1, "these heads: a round drafts as many", marks=pytest.mark.slow),
        (2, "as many tokens"),
    ],
)
def test_a_gguf_without_all_heads_says_so_and_works(heads: int, consequence: str, tmp_path: Path) -> None:
    path = write_with_heads(tmp_path / "part.gguf", heads)
    with pytest.warns(MissingMTPWarning, match=f"3 MTP heads are declared.*{consequence}"):
        model = specjax.load(path)
    assert model.config.mtp_layers == heads
    assert (model.drafter.max_drafts if model.drafter else 0) == heads
    with np.load(FIXTURES / FLASH / "reference.npz") as want:
        prompt, greedy = want["prompt"].tolist(), want["greedy"][:8].tolist()
    if heads == 0:
        assert model.logits([*prompt, *greedy])[-9:-1].argmax(axis=-1).tolist() == greedy
    if heads == 1:
        generation = model.generate(prompt, max_tokens=8)
        assert generation.tokens == greedy
        assert generation.stats.drafted > 0


@pytest.mark.parametrize("heads", [0, 1])
def test_safetensors_without_all_heads_say_so_and_work(heads: int, tmp_path: Path) -> None:
    source = FIXTURES / FLASH / "hf"
    tensors = {
        name: tensor
        for name, tensor in load_file(source / "model.safetensors").items()
        if not any(name.startswith(f"model.layers.{5 + index}.") for index in range(heads, DECLARED))
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.warns(MissingMTPWarning, match="3 MTP heads are declared"):
        part = checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)
    assert part.config == replace(load(FLASH, "hf").config, heads=load(FLASH, "hf").config.heads[:heads])


def test_a_head_that_is_there_in_part_is_an_error_that_lists_what_is_missing(tmp_path: Path) -> None:
    source = FIXTURES / PLAIN / "hf"
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.4.eh_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(TensorMismatchError, match=r"model\.layers\.4\.eh_proj\.weight"):
        checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)


def test_a_whole_file_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in ("model.gguf", "hf"):
            assert checkpoints.load(FIXTURES / FLASH / file, FAMILIES).config.mtp_layers == DECLARED


def test_released_step_3_7_is_read_out_of_the_conditional_generation_class(tmp_path: Path) -> None:
    source = FIXTURES / FLASH / "hf"
    text = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "step3p7", "text_config": text}))
    tensors = load_file(source / "model.safetensors")
    tensors["vision_model.conv1.weight"] = np.zeros((2, 2), np.float32)
    tensors["vit_large_projector.weight"] = np.zeros((2, 2), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same_model(checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False), load(FLASH, "hf"))
