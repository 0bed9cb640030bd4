"""Step-3.5 files: there and back again in both formats, and files that lack some of their heads."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import checkpoints
import specjax
from checkpoints import Checkpoint, ConfigError, MissingMTPWarning, TensorMismatchError
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import Llama3Rope
from specjax.models.step3_5.gguf import config_to_gguf

FIXTURES = Path(__file__).parents[1] / "fixtures" / "step3_5"
DECLARED = 3


@cache
def load(name: str, file: str) -> Checkpoint:
    return checkpoints.load(FIXTURES / name / file, FAMILIES)


def assert_same(got: Checkpoint, want: Checkpoint) -> None:
    assert got.config == want.config
    assert jax.tree.structure(got.params) == jax.tree.structure(want.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), got.params, want.params)


@pytest.mark.parametrize("name", ["flash", "plain"])
def test_a_gguf_written_again_is_the_same_model(name: str, tmp_path: Path) -> None:
    want = load(name, "model.gguf")
    assert want.tokenizer is not None
    checkpoints.write_gguf(tmp_path / "again.gguf", FAMILIES, want.config, want.params, want.tokenizer, weights="BF16")
    again = checkpoints.load(tmp_path / "again.gguf", FAMILIES)
    assert_same(again, want)
    ours, theirs = config_to_gguf(again.config), want.metadata
    # llama.cpp's converter leaves these at their defaults, or writes them though nothing reads them.
    clamps = {"swiglu_clamp_exp", "swiglu_clamp_shexp"}
    defaults = {*clamps, "vocab_size", "rope.dimension_count", "expert_gating_func", "expert_weights_scale"}
    informative = {"moe_every_n_layers"}
    keys = {key for key in theirs if key.startswith("step35.")}
    assert keys - set(ours) <= {f"step35.{key}" for key in informative}
    assert set(ours) - keys <= {f"step35.{key}" for key in defaults}
    for key in keys & set(ours):
        assert ours[key] == pytest.approx(theirs[key]), key


@pytest.mark.parametrize("name", ["flash", "plain"])
def test_safetensors_written_again_are_the_same_model(name: str, tmp_path: Path) -> None:
    want = load(name, "hf")
    checkpoints.write_hf(tmp_path, FAMILIES, want.config, want.params, want.tokenizer)
    assert_same(checkpoints.load(tmp_path, FAMILIES), want)
    ours, theirs = json.loads((tmp_path / "config.json").read_text()), want.metadata
    limits = ("swiglu_limits", "swiglu_limits_shared")
    for key in set(theirs) - {"dtype", "eos_token_id", "use_moe_router_bias"}:
        assert ours[key] == theirs[key], key
    assert set(ours) - set(theirs) <= {*limits, "moe_router_scaling_factor"}


def test_rotary_factors_without_their_formula_go_to_gguf_only(tmp_path: Path) -> None:
    flash = load("flash", "model.gguf")
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
    whole = load("flash", "model.gguf")
    assert whole.tokenizer is not None
    config = replace(whole.config, heads=whole.config.heads[:heads])
    params = {"target": whole.params["target"]}
    if heads:
        params["mtp"] = {f"heads_{index}": whole.params["mtp"][f"heads_{index}"] for index in range(heads)}
    checkpoints.write_gguf(path, FAMILIES, config, params, whole.tokenizer, metadata=config_to_gguf(whole.config))
    return path


@pytest.mark.parametrize(
    ("heads", "consequence"),
    [(0, "the trunk alone: nothing can be drafted"), (1, "these heads: a round drafts as many"), (2, "as many tokens")],
)
def test_a_gguf_without_all_heads_says_so_and_works(heads: int, consequence: str, tmp_path: Path) -> None:
    path = write_with_heads(tmp_path / "part.gguf", heads)
    with pytest.warns(MissingMTPWarning, match=f"3 MTP heads are declared.*{consequence}"):
        model = specjax.load(path)
    assert model.config.mtp_layers == heads
    assert (model.drafter.max_drafts if model.drafter else 0) == heads
    if heads < 2:  # one program without heads and one with
        with np.load(FIXTURES / "flash" / "reference.npz") as want:
            generation = model.generate(want["prompt"].tolist(), max_tokens=8)
            assert generation.tokens == want["greedy"][:8].tolist()
        assert (generation.stats.drafted > 0) == (heads > 0)


@pytest.mark.parametrize("heads", [0, 1])
def test_safetensors_without_all_heads_say_so_and_work(heads: int, tmp_path: Path) -> None:
    source = FIXTURES / "flash" / "hf"
    tensors = {
        name: tensor
        for name, tensor in load_file(source / "model.safetensors").items()
        if not any(name.startswith(f"model.layers.{5 + index}.") for index in range(heads, DECLARED))
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.warns(MissingMTPWarning, match="3 MTP heads are declared"):
        part = checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)
    assert part.config == replace(load("flash", "hf").config, heads=load("flash", "hf").config.heads[:heads])


def test_a_head_that_is_there_in_part_is_an_error_that_lists_what_is_missing(tmp_path: Path) -> None:
    source = FIXTURES / "plain" / "hf"
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
            assert checkpoints.load(FIXTURES / "flash" / file, FAMILIES).config.mtp_layers == DECLARED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe_router_activation": "softmax"}, "moe_router_activation is 'softmax'"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate is False"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"layer_types": None}, "config.json lacks layer_types"),
        ({"max_position_embeddings": None}, "describes no model"),
    ],
)
def test_what_is_not_supported_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = FIXTURES / "plain" / "hf"
    document = json.loads((source / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)


def test_released_step_3_7_is_read_out_of_the_conditional_generation_class(tmp_path: Path) -> None:
    source = FIXTURES / "flash" / "hf"
    text = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "step3p7", "text_config": text}))
    tensors = load_file(source / "model.safetensors")
    tensors["vision_model.conv1.weight"] = np.zeros((2, 2), np.float32)
    tensors["vit_large_projector.weight"] = np.zeros((2, 2), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same(checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False), load("flash", "hf"))
