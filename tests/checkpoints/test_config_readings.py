"""config.json files whose keys contradict each other mean here what they mean in transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_models import FIXTURES, load, with_config
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import assert_same, edit_gguf

import checkpoints
from checkpoints import ConfigError
from checkpoints.mapping.rope_formula import Llama3Rope
from specjax.models.registry import FAMILIES

READINGS = json.loads((FIXTURES / "config_readings.json").read_text())
"""Written by make_config_readings.py."""
DENSE = [case for case in READINGS if case["model"].startswith("dense/")]
GEMMA = [case for case in READINGS if case["model"].startswith("gemma4/")]


def config_of(name: str, folder: Path, change: dict[str, Any]) -> Any:
    return checkpoints.load(with_config(name, folder, change), FAMILIES, need_tokenizer=False).config


@pytest.mark.parametrize("case", DENSE, ids=lambda case: str(case["change"]))
def test_rotary_settings_are_those_of_transformers(case: dict[str, Any], tmp_path: Path) -> None:
    rope = case["rope"]
    if rope["rope_type"] not in ("default", "llama3"):
        with pytest.raises(ConfigError, match=f"rope_type '{rope['rope_type']}' is not supported"):
            config_of(case["model"], tmp_path, case["change"])
        return
    config = config_of(case["model"], tmp_path, case["change"])
    assert config.rope_theta == rope["rope_theta"]
    numbers = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    wanted = Llama3Rope(*(rope[key] for key in numbers)) if rope["rope_type"] == "llama3" else None
    assert config.rope_formula == wanted


@pytest.mark.parametrize("case", GEMMA, ids=lambda case: str(case["change"]))
def test_full_layers_of_gemma_are_those_of_transformers(case: dict[str, Any], tmp_path: Path) -> None:
    name, width = case["model"], case["head_width"]
    full = case["rope"]["full_attention"]
    settings = width, full["rope_theta"], full.get("partial_rotary_factor", 1.0) * width
    document = json.loads((FIXTURES / name / "hf" / "config.json").read_text())
    read = FAMILIES.of_hf("gemma4_text", "").hf.read_config({**document, **case["change"]}, {}, "config.json").full
    assert (read.head_width, read.rope_theta, read.rope_width) == settings


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dense/qwen3", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "for full_attention are not"),
        (
            "dense/llama",
            {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1.0}},
            "lacks factor, high_freq",
        ),
        ("dense/llama", {"is_causal": False}, "is_causal is False"),
        ("gemma4/dense", {"is_causal": False}, "is_causal is False"),
        ("step3_5/plain", {"is_causal": False}, "is_causal is False"),
        ("step3_5/plain", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters is not read"),
        ("step3_5/plain", {"query_pre_attn_scalar": 3}, "query_pre_attn_scalar is 3"),
        ("glm4_moe/air", {"n_shared_experts": 0}, "n_shared_experts is 0"),
    ],
)
def test_what_would_compute_something_else_is_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(name, tmp_path, change)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("dense/llama", {"llama.rope.scaling.factor": 4}, "rope scaling 'linear' with the factor 4"),
        ("dense/llama", {"llama.rope.scale_linear": 4}, "rope scaling 'linear' with the factor 4"),
        ("dense/llama", {"llama.rope.scaling.attn_factor": 2}, "attention scaled"),
        ("dense/llama", {"llama.attention.causal": 0}, "attention to later tokens"),
        ("gemma4/dense", {"gemma4.rope.scaling.type": "yarn", "gemma4.rope.scaling.factor": 4}, "rope scaling 'yarn'"),
    ],
)
def test_what_llama_cpp_would_scale_is_refused(name: str, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = edit_gguf(FIXTURES / name / "model.gguf", tmp_path / "model.gguf", keys=keys)
    with pytest.raises(ConfigError, match=message):
        checkpoints.load(path, FAMILIES, need_tokenizer=False)


def test_a_factor_of_the_type_none_scales_nothing(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4}
    path = edit_gguf(FIXTURES / "dense/llama/model.gguf", tmp_path / "model.gguf", keys=keys)
    assert checkpoints.load(path, FAMILIES, need_tokenizer=False).config == load("dense/llama", "model.gguf").config


@pytest.mark.parametrize("name", ["dense/qwen3", "gemma4/dense"])
@pytest.mark.parametrize("own", [False, True])
def test_a_head_beside_a_tied_table_counts_where_it_differs(name: str, own: bool, tmp_path: Path) -> None:
    want = load(name, "hf")
    path = with_config(name, tmp_path, {})
    (weights,) = path.glob("*.safetensors")
    tensors = load_file(weights)
    weights.unlink()
    head = tensors["model.embed_tokens.weight"].copy()
    head[-1, -1] += own
    save_file({**tensors, "lm_head.weight": head}, weights)
    got = checkpoints.load(path, FAMILIES, need_tokenizer=False)
    assert got.config == replace(want.config, tied_embeddings=not own)
    target = dict(want.params["target"])
    if own:
        target["lm_head"] = {"weight": np.asarray(head, np.float32)}
    assert_same(got.params["target"], target)


@pytest.mark.parametrize("names_it", [False, True])
def test_an_index_counts_beside_a_whole_file_if_it_names_it(names_it: bool, tmp_path: Path) -> None:
    path = with_config("dense/qwen3", tmp_path, {})
    (weights,) = path.glob("*.safetensors")
    tensors = load_file(weights)
    shard = {name: tensor for name, tensor in tensors.items() if name == "model.norm.weight"}
    others = {name: tensor for name, tensor in tensors.items() if name not in shard}
    weights.unlink()
    save_file(others if names_it else tensors, path / "model.safetensors")
    save_file({name: tensor * 2 for name, tensor in shard.items()}, path / "other.safetensors")
    places = dict.fromkeys(others, "model.safetensors") if names_it else {}
    weight_map = {**places, **dict.fromkeys(shard, "other.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    got = checkpoints.load(path, FAMILIES, need_tokenizer=False).params["target"]["norm"]["weight"]
    want = load("dense/qwen3", "hf").params["target"]["norm"]["weight"]
    np.testing.assert_array_equal(got, (2 if names_it else 1) * np.asarray(want))
