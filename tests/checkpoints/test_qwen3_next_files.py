"""Qwen3-Next files: joint tensors, in released and in older forms, and packed."""

from __future__ import annotations

import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from fixture_models import FIXTURES, assert_same_model, load
from tiny_checkpoints import edit_gguf, make_config, make_tokenizer

import checkpoints
from checkpoints.gguf.file import GGUFFile
from checkpoints.mapping.tree import flatten, is_matrix, unflatten
from checkpoints.safetensors.file import SafetensorsDirectory
from pallas_kernels.matmul import QTensor
from specjax.models.qwen3_next import Qwen3NextConfig
from specjax.models.qwen3_next.gguf import gguf_rules
from specjax.models.qwen3_next.rules import Regrouped
from specjax.models.registry import FAMILIES


def test_rows_are_regrouped_and_put_back() -> None:
    """Three groups of a row of a, two of b, one of c: the first parameter has all of a, then all of b."""
    rule = Regrouped(("joint",), ("ab", "c"), 3, ((1, 2), (1,)))
    stored = np.array([["a0", "b0", "B0", "c0"], ["a1", "b1", "B1", "c1"], ["a2", "b2", "B2", "c2"]]).reshape(-1, 1)
    first, second = rule.forward(iter([stored]))
    assert first[:, 0].tolist() == ["a0", "a1", "a2", "b0", "B0", "b1", "B1", "b2", "B2"]
    assert second[:, 0].tolist() == ["c0", "c1", "c2"]
    (back,) = rule.backward([first, second])
    assert back.tolist() == stored.tolist()
    assert rule.source_shapes([first.shape, second.shape]) == [stored.shape]


@pytest.mark.parametrize("name", ["qwen3_next/a3b", "qwen3_next/tied"])
def test_old_ggufs_with_one_tensor_for_queries_keys_values_and_gates(name: str, tmp_path: Path) -> None:
    """It is the tensor of the Hugging Face checkpoint. Such files say nothing of which layers are recurrent."""
    source, folder = FIXTURES / name / "model.gguf", SafetensorsDirectory(FIXTURES / name / "hf")
    apart = [tensor for tensor in GGUFFile(source).tensors if tensor.endswith(("attn_qkv.weight", "attn_gate.weight"))]
    joint = {
        f"blk.{layer}.ssm_in.weight": folder.read(f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight", np.float32)
        for layer in sorted({int(tensor.split(".")[1]) for tensor in apart})
    }
    silent = ["qwen3next.attention.recurrent_layers"]
    silent += ["qwen3next.full_attention_interval"] if name == "qwen3_next/a3b" else []
    edit_gguf(source, tmp_path / "old.gguf", drop=apart, add=joint, drop_keys=silent)
    assert_same_model(checkpoints.load(tmp_path / "old.gguf", FAMILIES), load(name, "model.gguf"))


def test_every_matrix_of_a_packed_file_stays_packed(tmp_path: Path) -> None:
    """Rows of joint tensors are moved as they are: nothing is decoded, which would be warned of."""
    sparse = make_config(moe=True, linear_value_heads=6, rope_sections=())
    settings = {field.name: getattr(sparse, field.name) for field in fields(sparse)}
    config = Qwen3NextConfig(**settings)
    rng = np.random.default_rng(0)
    shapes = gguf_rules(config).shapes
    params = unflatten({path: rng.standard_normal(shape, np.float32) for path, shape in shapes.items()})
    for layer in ("layers_0", "layers_1"):
        params["target"][layer]["delta_net"]["a"] = -np.ones(6, np.float32)
    checkpoints.write_gguf(tmp_path / "q8.gguf", FAMILIES, config, params, make_tokenizer(), weights="Q8_0")
    assert GGUFFile(tmp_path / "q8.gguf").tensors["blk.0.ssm_ba.weight"].type == "Q8_0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packed = flatten(checkpoints.load(tmp_path / "q8.gguf", FAMILIES, packed="a16").params)
    plain = flatten(checkpoints.load(tmp_path / "q8.gguf", FAMILIES).params)
    for path, leaf in packed.items():
        kept_in_f32 = "router" in path or "shared_gate" in path
        assert isinstance(leaf, QTensor) == (is_matrix(path, shapes[path]) and not kept_in_f32), path
    for kind in ("beta_proj", "alpha_proj"):
        path = f"target.layers_0.delta_net.{kind}.weight"
        np.testing.assert_allclose(plain[path], flatten(params)[path], atol=0.03)
