"""GLM-4.5 files: there and back again, without their head, and what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import assert_same, edit_gguf

import checkpoints
from checkpoints import Checkpoint, ConfigError, MissingMTPWarning
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.safetensors.file import SafetensorsDirectory
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures" / "glm4_moe"
MODELS = ("large", "air", "plain")


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
        {key: value for key, value in checkpoint.metadata.items() if key.startswith("glm4moe.")}
        for checkpoint in (again, want)
    )
    assert ours.pop("glm4moe.vocab_size") == 320  # llama.cpp's converter leaves it to the table
    assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("name", MODELS)
def test_safetensors_written_again_are_the_same_model(name: str, tmp_path: Path) -> None:
    want = load(name, "hf")
    checkpoints.write_hf(tmp_path, FAMILIES, want.config, want.params, want.tokenizer)
    assert_same_model(checkpoints.load(tmp_path, FAMILIES), want)
    written = SafetensorsDirectory(tmp_path)
    assert written.tensors.keys() == SafetensorsDirectory(FIXTURES / name / "hf").tensors.keys()
    for key in set(want.metadata) - {"torch_dtype", "eos_token_id", "pad_token_id"}:
        assert written.document[key] == want.metadata[key], key


@pytest.mark.parametrize(("start", "to"), [("hf", "gguf"), ("model.gguf", "hf")])
def test_a_model_goes_through_every_format(start: str, to: str, tmp_path: Path) -> None:
    for source, target, kind in ((FIXTURES / "large" / start, "orbax", "orbax"), (tmp_path / "orbax", "other", to)):
        conversion = prepare(source, tmp_path / target, FAMILIES, ConvertOptions(kind))  # type: ignore[arg-type]
        assert not conversion.compare(conversion.run()).wrong
        assert_same_model(checkpoints.load(tmp_path / target, FAMILIES), load("large", start))


def test_fused_experts_are_read(tmp_path: Path) -> None:
    """transformers packs experts in memory, and some checkpoints keep them so."""
    source, want = FIXTURES / "air" / "hf", load("air", "hf")
    tensors = load_file(source / "model.safetensors")
    for layer in (1, 2, 3):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([tensors.pop(f"{prefix}{expert}.{kind}_proj.weight") for expert in range(8)])
            for kind in ("gate", "up", "down")
        )
        tensors |= {f"{prefix}gate_up_proj": np.concatenate([gate, up], axis=1), f"{prefix}down_proj": down}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    assert_same_model(checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False), want)


def test_fused_experts_of_a_gguf_are_read(tmp_path: Path) -> None:
    """llama.cpp's converter writes gates and ups of experts as one tensor if it is told to."""
    want, source = load("air", "model.gguf"), tmp_path / "apart.gguf"
    assert want.tokenizer is not None
    checkpoints.write_gguf(source, FAMILIES, want.config, want.params, want.tokenizer)
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(source).tensors}
    drop, fused = [], {}
    for name in [f"blk.{layer}.ffn_{{}}_exps.weight" for layer in (1, 2, 3)]:
        apart = [name.format(kind) for kind in ("gate", "up")]
        fused[name.format("gate_up")] = np.concatenate([tensors[each] for each in apart], axis=1)
        drop += apart
    path = edit_gguf(source, tmp_path / "fused.gguf", drop=drop, add=fused)
    assert_same_model(checkpoints.load(path, FAMILIES), want)


@pytest.mark.parametrize("file", ["hf", "model.gguf"])
def test_files_without_the_declared_head_are_trunks(file: str, tmp_path: Path) -> None:
    want = load("air", file)
    if file == "hf":
        tensors = load_file(FIXTURES / "air" / "hf" / "model.safetensors")
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("model.layers.3.")}
        save_file(kept, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((FIXTURES / "air" / "hf" / "config.json").read_text())
        path = tmp_path
    else:
        drop = [name for name in GGUFFile(FIXTURES / "air" / file).tensors if name.startswith("blk.3.")]
        path = edit_gguf(FIXTURES / "air" / file, tmp_path / file, drop=drop)
    with pytest.warns(MissingMTPWarning, match="declare an MTP head"):
        got = checkpoints.load(path, FAMILIES, need_tokenizer=False)
    assert (got.config.mtp_layers, got.config.num_layers) == (0, 3)
    assert_same(got.params, {"target": want.params["target"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not supported"),
        ({"n_routed_experts": None}, "config.json lacks n_routed_experts"),
        ({"n_group": 3}, "describes no model: 8 experts do not make 3 equal groups"),
        ({"first_k_dense_replace": 9}, "dense_layers is 9; there are 3 layers"),
    ],
)
def test_what_is_not_supported_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = FIXTURES / "air" / "hf"
    document = json.loads((source / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        checkpoints.load(tmp_path, FAMILIES, need_tokenizer=False)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.dimension_sections", [2, 2, 2, 2], r"the text model of GLM-4\.5V"),
        ("expert_gating_func", 1, "expert_gating_func 1 is not supported"),
    ],
)
def test_ggufs_of_other_kinds_are_refused(key: str, value: Any, message: str, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(FIXTURES / "air" / "model.gguf")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "glm4moe")
    for name, field in reader.fields.items():
        if name.startswith("glm4moe.") and not name.endswith(key):
            writer.add_key_value(name, field.contents(), field.types[0])
    if isinstance(value, list):
        writer.add_array(f"glm4moe.{key}", value)
    else:
        writer.add_uint32(f"glm4moe.{key}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=message):
        checkpoints.describe(tmp_path / "other.gguf", FAMILIES)
