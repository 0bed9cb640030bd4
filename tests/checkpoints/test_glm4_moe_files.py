"""GLM-4.5 files: experts in one tensor, and files of its relatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixture_models import FIXTURES, assert_same_model, load
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import edit_gguf

import checkpoints
from checkpoints import ConfigError
from specjax.models.registry import FAMILIES

AIR = "glm4_moe/air"


def test_fused_experts_are_read(tmp_path: Path) -> None:
    """transformers packs experts in memory, and some checkpoints keep them so."""
    source, want = FIXTURES / AIR / "hf", load(AIR, "hf")
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
    want, source = load(AIR, "model.gguf"), tmp_path / "apart.gguf"
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


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.dimension_sections", [2, 2, 2, 2], r"the text model of GLM-4\.5V"),
        ("expert_gating_func", 1, "expert_gating_func 1 is not supported"),
    ],
)
def test_ggufs_of_other_kinds_are_refused(key: str, value: Any, message: str, tmp_path: Path) -> None:
    other = edit_gguf(FIXTURES / AIR / "model.gguf", tmp_path / "other.gguf", keys={f"glm4moe.{key}": value})
    with pytest.raises(ConfigError, match=message):
        checkpoints.describe(other, FAMILIES)
