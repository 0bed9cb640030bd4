"""Qwen3-Next files: there and back again, in released and in older forms, packed, and what is refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import assert_same, edit_gguf, make_config, make_tokenizer

import checkpoints
from checkpoints import Checkpoint, ConfigError, MissingMTPWarning
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.mapping.tree import flatten, is_matrix, unflatten
from checkpoints.safetensors.file import SafetensorsDirectory
from pallas_kernels.matmul import QTensor
from specjax.models.qwen3_next import Qwen3NextConfig
from specjax.models.qwen3_next.gguf import gguf_rules
from specjax.models.qwen3_next.rules import Regrouped
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_next"
MODELS = ("a3b", "tied")


@cache
def load(name: str, file: str) -> Checkpoint:
    return checkpoints.load(FIXTURES / name / file, FAMILIES)


def assert_same_model(got: Checkpoint, want: Checkpoint) -> None:
    assert got.config == want.config
    assert_same(got.params, want.params, rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_written_again_is_the_same_model(name: str, tmp_path: Path) -> None:
    want = load(name, "model.gguf")
    assert want.tokenizer is not None
    checkpoints.write_gguf(tmp_path / "again.gguf", FAMILIES, want.config, want.params, want.tokenizer, weights="BF16")
    again = checkpoints.load(tmp_path / "again.gguf", FAMILIES)
    assert_same_model(again, want)
    ours, theirs = (
        {key: value for key, value in checkpoint.metadata.items() if key.startswith("qwen3next.")}
        for checkpoint in (again, want)
    )
    assert ours.pop("qwen3next.vocab_size") == 320  # llama.cpp's converter leaves it to the table
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == (pytest.approx(value) if isinstance(value, float) else value), key


@pytest.mark.parametrize("name", MODELS)
def test_safetensors_written_again_are_the_same_model(name: str, tmp_path: Path) -> None:
    """In the released form: one tensor per expert, and a config.json that names no MTP block."""
    want = load(name, "hf")
    checkpoints.write_hf(tmp_path, FAMILIES, want.config, want.params, want.tokenizer)
    assert_same_model(checkpoints.load(tmp_path, FAMILIES), want)
    ours, theirs = json.loads((tmp_path / "config.json").read_text()), load("a3b", "hf").metadata
    tokens = {"bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"}
    assert set(ours) - tokens == set(theirs) - tokens - {"full_attention_interval"} | {"layer_types"}
    written, released = SafetensorsDirectory(tmp_path), SafetensorsDirectory(FIXTURES / "a3b" / "hf")
    if name == "a3b":
        assert written.tensors.keys() == released.tensors.keys()


@pytest.mark.parametrize(("start", "to"), [("hf", "gguf"), ("model.gguf", "hf")])
def test_a_model_goes_through_every_format(start: str, to: str, tmp_path: Path) -> None:
    for source, target, kind in ((FIXTURES / "tied" / start, "orbax", "orbax"), (tmp_path / "orbax", "other", to)):
        conversion = prepare(source, tmp_path / target, FAMILIES, ConvertOptions(kind))  # type: ignore[arg-type]
        assert not conversion.compare(conversion.run()).wrong
        assert_same_model(checkpoints.load(tmp_path / target, FAMILIES), load("tied", start))


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


@pytest.mark.parametrize("name", MODELS)
def test_old_ggufs_with_one_tensor_for_queries_keys_values_and_gates(name: str, tmp_path: Path) -> None:
    """It is the tensor of the Hugging Face checkpoint. Such files say nothing of which layers are recurrent."""
    source, folder = FIXTURES / name / "model.gguf", SafetensorsDirectory(FIXTURES / name / "hf")
    apart = [tensor for tensor in GGUFFile(source).tensors if tensor.endswith(("attn_qkv.weight", "attn_gate.weight"))]
    joint = {
        f"blk.{layer}.ssm_in.weight": folder.read(f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight", np.float32)
        for layer in sorted({int(tensor.split(".")[1]) for tensor in apart})
    }
    silent = ["qwen3next.attention.recurrent_layers"]
    silent += ["qwen3next.full_attention_interval"] if name == "a3b" else []
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


@pytest.mark.parametrize("file", ["hf", "model.gguf"])
def test_files_without_the_head_are_trunks(file: str, tmp_path: Path) -> None:
    """A GGUF declares it, which is worth a warning; config.json says nothing."""
    want = load("tied", file)
    if file == "hf":
        tensors = load_file(FIXTURES / "tied" / "hf" / "model.safetensors")
        save_file({k: v for k, v in tensors.items() if not k.startswith("mtp.")}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((FIXTURES / "tied" / "hf" / "config.json").read_text())
        got = checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)
    else:
        source = FIXTURES / "tied" / file
        drop = [name for name in GGUFFile(source).tensors if name.startswith("blk.4.")]
        edit_gguf(source, tmp_path / file, drop=drop)
        with pytest.warns(MissingMTPWarning, match="declare an MTP head"):
            got = checkpoints.load(tmp_path / file, FAMILIES)
    assert got.config.mtp_layers == 0
    assert got.config.layer_types == want.config.layer_types
    assert_same(got.params, {"target": want.params["target"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"num_experts": None}, "config.json lacks num_experts"),
    ],
)
def test_what_is_not_supported_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = FIXTURES / "a3b" / "hf"
    for file in source.glob("model*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)
