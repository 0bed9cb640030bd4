"""Files of families with heads in them: there and back again, without the head, and what is refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_models import FIXTURES, assert_same_model, load, with_config
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import assert_same, edit_gguf

import checkpoints
from checkpoints import ConfigError, MissingMTPWarning
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.safetensors.file import SafetensorsDirectory
from specjax.models.registry import FAMILIES

QWEN3_NEXT = ("qwen3_next/a3b", "qwen3_next/tied")
GLM4_MOE = ("glm4_moe/large", "glm4_moe/air", "glm4_moe/plain")
MODELS = (*QWEN3_NEXT, *GLM4_MOE, "step3_5/flash", "step3_5/plain")

# Keys of a model's own that a written file has and llama.cpp's converter leaves out; and those that nothing reads.
MORE_IN_GGUF = {
    **{name: {"vocab_size"} for name in (*QWEN3_NEXT, *GLM4_MOE)},
    "step3_5/flash": {"vocab_size", "rope.dimension_count"},
    "step3_5/plain": {
        *("vocab_size", "rope.dimension_count", "expert_weights_scale"),
        *("swiglu_clamp_exp", "swiglu_clamp_shexp"),
    },
}
LESS_IN_GGUF = {name: {"moe_every_n_layers"} for name in ("step3_5/flash", "step3_5/plain")}

# The same for config.json, where the released form of Qwen3-Next is written whatever form was read.
MORE_IN_CONFIG = {
    "qwen3_next/a3b": {"layer_types"},
    "qwen3_next/tied": {"partial_rotary_factor", "rope_scaling", "rope_theta"},
    "step3_5/plain": {"moe_router_scaling_factor", "swiglu_limits", "swiglu_limits_shared"},
}
LESS_IN_CONFIG = {
    "qwen3_next/a3b": {"full_attention_interval"},
    "qwen3_next/tied": {"full_attention_interval", "rope_parameters"},
}
NOT_OF_THE_MODEL = {"bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"}


def assert_same_metadata(ours: dict[str, Any], theirs: dict[str, Any], more: set[str], less: set[str]) -> None:
    assert ours.keys() - theirs.keys() == more
    assert theirs.keys() - ours.keys() == less
    for key in ours.keys() & theirs.keys():
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_written_again_is_the_same_model(name: str, tmp_path: Path) -> None:
    want = load(name, "model.gguf")
    assert want.tokenizer is not None
    checkpoints.write_gguf(tmp_path / "again.gguf", FAMILIES, want.config, want.params, want.tokenizer, weights="BF16")
    again = checkpoints.load(tmp_path / "again.gguf", FAMILIES)
    assert_same_model(again, want)
    prefix = f"{want.metadata['general.architecture']}."
    ours, theirs = (
        {key.removeprefix(prefix): value for key, value in checkpoint.metadata.items() if key.startswith(prefix)}
        for checkpoint in (again, want)
    )
    assert_same_metadata(ours, theirs, MORE_IN_GGUF[name], LESS_IN_GGUF.get(name, set()))
    assert ours["vocab_size"] == want.config.vocab_size


@pytest.mark.parametrize("name", MODELS)
def test_safetensors_written_again_are_the_same_model(name: str, tmp_path: Path) -> None:
    want = load(name, "hf")
    checkpoints.write_hf(tmp_path, FAMILIES, want.config, want.params, want.tokenizer)
    assert_same_model(checkpoints.load(tmp_path, FAMILIES), want)
    ours, theirs = (
        {key: value for key, value in document.items() if key not in NOT_OF_THE_MODEL}
        for document in (json.loads((tmp_path / "config.json").read_text()), want.metadata)
    )
    assert_same_metadata(ours, theirs, MORE_IN_CONFIG.get(name, set()), LESS_IN_CONFIG.get(name, set()))
    if name != "qwen3_next/tied":  # its experts are fused, and are released one by one
        released = SafetensorsDirectory(FIXTURES / name / "hf")
        assert SafetensorsDirectory(tmp_path).tensors.keys() == released.tensors.keys()


@pytest.mark.parametrize(
    ("name", "start", "to"),
    [
        ("qwen3_next/tied", "hf", "gguf"),
        ("glm4_moe/large", "model.gguf", "hf"),
        pytest.param("qwen3_next/tied", "model.gguf", "hf", marks=pytest.mark.slow),
        pytest.param("glm4_moe/large", "hf", "gguf", marks=pytest.mark.slow),
    ],
)
def test_a_model_goes_through_every_format(name: str, start: str, to: str, tmp_path: Path) -> None:
    for source, target, kind in ((FIXTURES / name / start, "orbax", "orbax"), (tmp_path / "orbax", "other", to)):
        conversion = prepare(source, tmp_path / target, FAMILIES, ConvertOptions(kind))  # type: ignore[arg-type]
        assert not conversion.compare(conversion.run()).wrong
        assert_same_model(checkpoints.load(tmp_path / target, FAMILIES), load(name, start))


@pytest.mark.parametrize(
    ("name", "file", "head", "declared"),
    [
        ("qwen3_next/tied", "hf", "mtp.", False),  # nothing but the tensors says that there is a head
        ("qwen3_next/tied", "model.gguf", "blk.4.", True),
        ("glm4_moe/air", "hf", "model.layers.3.", True),
        ("glm4_moe/air", "model.gguf", "blk.3.", True),
    ],
)
def test_files_without_the_head_are_trunks(name: str, file: str, head: str, declared: bool, tmp_path: Path) -> None:
    want = load(name, file)
    if file == "hf":
        path = with_config(name, tmp_path, {})
        (weights,) = path.glob("*.safetensors")
        tensors = load_file(weights)
        weights.unlink()
        save_file({key: tensor for key, tensor in tensors.items() if not key.startswith(head)}, weights)
    else:
        source = FIXTURES / name / file
        drop = [key for key in GGUFFile(source).tensors if key.startswith(head)]
        path = edit_gguf(source, tmp_path / file, drop=drop)
    with pytest.warns(MissingMTPWarning, match="declare an MTP head") if declared else nullcontext():
        got = checkpoints.load(path, FAMILIES, need_tokenizer=False)
    assert got.config == replace(want.config, mtp_layers=0)
    assert_same(got.params, {"target": want.params["target"]})


YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen3_next/a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ("qwen3_next/a3b", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ("qwen3_next/a3b", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("qwen3_next/a3b", {"attention_bias": True}, "attention_bias is True"),
        ("qwen3_next/a3b", YARN, "rope_type 'yarn' is not supported"),
        ("qwen3_next/a3b", {"num_experts": None}, "config.json lacks num_experts"),
        ("glm4_moe/air", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("glm4_moe/air", YARN, "rope_type 'yarn' is not supported"),
        ("glm4_moe/air", {"n_routed_experts": None}, "config.json lacks n_routed_experts"),
        ("glm4_moe/air", {"n_group": 3}, "describes no model: 8 experts do not make 3 equal groups"),
        ("glm4_moe/air", {"first_k_dense_replace": 9}, "dense_layers is 9; there are 3 layers"),
        ("step3_5/plain", {"moe_router_activation": "softmax"}, "moe_router_activation is 'softmax'"),
        ("step3_5/plain", {"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate is False"),
        ("step3_5/plain", YARN, "rope_type 'yarn' is not supported"),
        ("step3_5/plain", {"layer_types": None}, "config.json lacks layer_types"),
        ("step3_5/plain", {"max_position_embeddings": None}, "describes no model"),
    ],
)
def test_what_is_not_supported_is_refused(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        checkpoints.load(with_config(name, tmp_path, change), FAMILIES, need_tokenizer=False)
