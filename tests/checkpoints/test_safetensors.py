"""Hugging Face directories: the same model in another order, under other names, in one file or many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import assert_same, make_config, make_params, make_tokenizer, write_tiny_gguf

import checkpoints
from checkpoints.mapping.transforms import tile_heads
from specjax.models.registry import FAMILIES

ROUNDING = 3e-7
"""Of a, which the file stores as the logarithm of its negative, and of norms, which it stores as w - 1."""


def write(directory: Path, moe: bool = False, **arguments: Any) -> Path:
    config = make_config(moe)
    checkpoints.write_hf(directory, FAMILIES, config, make_params(config), make_tokenizer(), **arguments)
    return directory


def rewrite(directory: Path, rename: Any) -> None:
    """Replace model.safetensors by `rename` of its tensors."""
    tensors = rename(load_file(directory / "model.safetensors"))
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"moe": True},
        {"tied_embeddings": True},
        {"mtp_layers": 0},
        {"mtp_own_embedding": True, "mtp_own_output": True},
    ],
)
def test_a_written_model_reads_back_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(**changes)
    checkpoints.write_hf(tmp_path, FAMILIES, config, make_params(config), make_tokenizer())
    loaded = checkpoints.load(tmp_path, FAMILIES)
    assert loaded.config == config
    assert_same(loaded.params, make_params(config), ROUNDING)


@pytest.mark.parametrize("moe", [False, True])
def test_safetensors_and_gguf_of_a_model_are_the_same_model(moe: bool, tmp_path: Path) -> None:
    from_gguf = checkpoints.load(write_tiny_gguf(tmp_path / "model.gguf", make_config(moe)), FAMILIES)
    from_hf = checkpoints.load(write(tmp_path / "hf", moe), FAMILIES)
    assert from_gguf.config == from_hf.config
    assert_same(from_hf.params, from_gguf.params, ROUNDING)


def test_shards_are_one_model(tmp_path: Path) -> None:
    write(tmp_path, shard_bytes=100_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_same(checkpoints.load(tmp_path, FAMILIES).params, make_params(make_config()), ROUNDING)


def test_a_new_model_leaves_no_shards_of_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, shard_bytes=100_000)
    write(tmp_path)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]
    write(tmp_path, shard_bytes=100_000)
    assert not (tmp_path / "model.safetensors").exists()
    checkpoints.load(tmp_path, FAMILIES)


def test_writing_over_a_model_and_being_interrupted_leaves_none(tmp_path: Path) -> None:
    class PowerCutError(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        raise PowerCutError

    write(tmp_path, shard_bytes=100_000)
    with pytest.raises(PowerCutError):
        write(tmp_path, shard_bytes=100_000, progress=interrupt)
    with pytest.raises(checkpoints.FormatError, match=r"no config\.json"):
        checkpoints.load(tmp_path, FAMILIES)
    assert all(path.suffix == ".safetensors" for path in tmp_path.iterdir())
    write(tmp_path)
    checkpoints.load(tmp_path, FAMILIES)


def test_the_vocabulary_of_an_earlier_model_goes_with_it(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "chat_template.jinja").touch()
    checkpoints.write_hf(tmp_path, FAMILIES, make_config(), make_params(make_config()))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_bfloat16_files_are_read(tmp_path: Path) -> None:
    loaded = checkpoints.load(write(tmp_path, dtype=ml_dtypes.bfloat16), FAMILIES, ml_dtypes.bfloat16)
    want = make_params(make_config())
    got = loaded.params["target"]["layers_0"]["delta_net"]["qkv_proj"]["weight"]
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        np.asarray(got, np.float32), want["target"]["layers_0"]["delta_net"]["qkv_proj"]["weight"]
    )
    assert loaded.params["target"]["norm"]["weight"].dtype == np.float32


def test_one_tensor_per_expert_is_read_like_fused_experts(tmp_path: Path) -> None:
    write(tmp_path, moe=True)

    def unfuse(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = {}
        for name, tensor in tensors.items():
            base, _, kind = name.rpartition(".")
            for e, expert in enumerate(tensor):
                if kind == "gate_up_proj":
                    gate, up = np.split(expert, 2)
                    out |= {f"{base}.{e}.gate_proj.weight": gate.copy(), f"{base}.{e}.up_proj.weight": up.copy()}
                elif name.endswith("experts.down_proj"):
                    out[f"{base}.{e}.down_proj.weight"] = expert.copy()
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                out[name] = tensor
        return out

    rewrite(tmp_path, unfuse)
    assert_same(checkpoints.load(tmp_path, FAMILIES).params, make_params(make_config(moe=True)), ROUNDING)


def test_the_text_model_inside_a_conditional_generation_one_is_found(tmp_path: Path) -> None:
    write(tmp_path)

    def nest(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        trunk = {name.replace("model.", "model.language_model.", 1): x for name, x in tensors.items()}
        return trunk | {"model.visual.blocks.0.attn.qkv.weight": np.zeros((4, 4), np.float32)}

    rewrite(tmp_path, nest)
    text = json.loads((tmp_path / "config.json").read_text())
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5_vision"},
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    loaded = checkpoints.load(tmp_path, FAMILIES)
    assert loaded.config == make_config()
    assert_same(loaded.params, make_params(make_config()), ROUNDING)


def test_value_heads_are_reordered_from_grouped_to_tiled() -> None:
    # Two key heads with three value heads each, two entries wide, after one entry that stays.
    stored = np.array([-1, *[10 * group + head for group in (1, 2) for head in range(3) for _ in range(2)]])
    tiled = [-1, 10, 10, 20, 20, 11, 11, 21, 21, 12, 12, 22, 22]
    transform = tile_heads(groups=2, per_group=3, width=2, axis=0, skip=1)
    np.testing.assert_array_equal(transform.forward(stored), tiled)
    np.testing.assert_array_equal(transform.backward(transform.forward(stored)), stored)


def test_names_and_shapes_are_those_of_transformers(tmp_path: Path) -> None:
    tensors = load_file(write(tmp_path) / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == (256, 1, 4)
    assert shapes["model.layers.0.linear_attn.in_proj_qkv.weight"] == (256, 64)
    assert shapes["model.layers.2.self_attn.q_proj.weight"] == (2 * 4 * 16, 64)
    assert shapes["mtp.fc.weight"] == (64, 128)
    norm = tensors["model.norm.weight"]
    np.testing.assert_allclose(norm, make_params(make_config())["target"]["norm"]["weight"] - 1, atol=1e-7)


def test_a_directory_describes_itself_like_a_file(tmp_path: Path) -> None:
    description = checkpoints.describe(write(tmp_path, moe=True), FAMILIES)
    assert description.config == make_config(moe=True)
    assert description.format == "safetensors"
    assert description.has_mtp
    assert description.problems is None
    assert checkpoints.TensorInfo("model.norm.weight", (64,), "F32", 256) in description.tensors
