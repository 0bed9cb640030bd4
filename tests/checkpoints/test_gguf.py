"""GGUF files: what is written is what is read, in every type and variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from tiny_checkpoints import assert_same, edit_gguf, make_config, make_params, make_tokenizer, write_tiny_gguf

import checkpoints
from checkpoints.mapping.tree import flatten
from specjax.models.qwen3_5 import FULL_ATTENTION, LINEAR_ATTENTION, hybrid_layer_types
from specjax.models.registry import FAMILIES

VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "moe": {"moe": True},
    "tied": {"tied_embeddings": True},
    "no head": {"mtp_layers": 0},
    "head with everything of its own": {"mtp_own_embedding": True, "mtp_own_output": True},
    "head that shares the final norm": {"mtp_own_norm": False},
    "irregular layers": {"layer_types": (FULL_ATTENTION, LINEAR_ATTENTION, LINEAR_ATTENTION, FULL_ATTENTION)},
    "every layer full attention": {"layer_types": hybrid_layer_types(2, 1)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_written_model_reads_back_the_same(variant: str, tmp_path: Path) -> None:
    config = make_config(**VARIANTS[variant])
    path = write_tiny_gguf(tmp_path / "model.gguf", config)
    loaded = checkpoints.load(path, FAMILIES)
    assert loaded.config == config
    assert_same(loaded.params, make_params(config))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("def é") == make_tokenizer().encode("def é")


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("weights", ["F16", "BF16", "Q8_0"])
def test_small_types_hold_matrices_and_leave_the_rest_in_float32(weights: Any, moe: bool, tmp_path: Path) -> None:
    config = make_config(moe)
    path = write_tiny_gguf(tmp_path / "model.gguf", config, weights=weights)
    assert_same(checkpoints.load(path, FAMILIES).params, make_params(config))
    types = {tensor.name: tensor.type for tensor in checkpoints.describe(path, FAMILIES).tensors}
    assert {types[f"blk.0.{name}"] for name in ("attn_norm.weight", "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias")} == {
        "F32"
    }
    assert {types[name] for name in ("token_embd.weight", "blk.0.attn_qkv.weight", "blk.3.nextn.eh_proj.weight")} == {
        weights
    }


def test_rows_that_do_not_fill_q8_0_blocks_stay_in_float32(tmp_path: Path) -> None:
    config = make_config(mlp_width=72)
    path = write_tiny_gguf(tmp_path / "model.gguf", config, weights="Q8_0")
    types = {tensor.name: tensor.type for tensor in checkpoints.describe(path, FAMILIES).tensors}
    assert types["blk.0.ffn_down.weight"] == "F32"
    assert types["blk.0.ffn_up.weight"] == "Q8_0"
    assert_same(checkpoints.load(path, FAMILIES).params, make_params(config))


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q6_K", "Q4_K", "IQ4_NL", "MXFP4"])
def test_every_type_that_gguf_decodes_is_read(kind: str, tmp_path: Path) -> None:
    code = GGMLQuantizationType[kind]
    config = make_config(mlp_width=256)
    source = write_tiny_gguf(tmp_path / "source.gguf", config)
    name, width = "blk.1.ffn_down.weight", 256
    if kind in ("Q4_0", "Q5_1"):
        raw = quants.quantize(np.asarray(make_params(config)["target"]["layers_1"]["mlp"]["down_proj"]["weight"]), code)
    else:  # gguf cannot encode these: bytes that decode to small finite numbers
        block, size = gguf.GGML_QUANT_SIZES[code]
        raw = np.tile(np.arange(size, dtype=np.uint8) % 32, (config.width, width // block))
    path = edit_gguf(source, tmp_path / "model.gguf", retype={name: (raw, code)})
    loaded = checkpoints.load(path, FAMILIES).params["target"]["layers_1"]["mlp"]["down_proj"]["weight"]
    np.testing.assert_array_equal(loaded, quants.dequantize(raw, code))


def test_fused_experts_are_split(tmp_path: Path) -> None:
    config = make_config(moe=True)
    source = write_tiny_gguf(tmp_path / "source.gguf", config)
    parts = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(source).tensors}
    gate, up = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"
    fused = {"blk.0.ffn_gate_up_exps.weight": np.concatenate([parts[gate], parts[up]], axis=1)}
    path = edit_gguf(source, tmp_path / "model.gguf", drop=(gate, up), add=fused)
    assert_same(checkpoints.load(path, FAMILIES).params, make_params(config))


def test_dtype_applies_to_matrices_alone(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", make_config())
    for name, leaf in flatten(checkpoints.load(path, FAMILIES, jnp.bfloat16).params).items():
        vector = leaf.ndim == 1 or ".conv." in name
        assert leaf.dtype == (jnp.float32 if vector else jnp.bfloat16), name


def test_parts_of_a_split_file_are_one_model(tmp_path: Path) -> None:
    config = make_config()
    source = write_tiny_gguf(tmp_path / "source.gguf", config)
    edit_gguf(source, tmp_path / "split.gguf", tensors_per_part=30)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) > 1
    for part in parts:
        loaded = checkpoints.load(part, FAMILIES)
        assert loaded.config == config
        assert_same(loaded.params, make_params(config))


def test_layer_types_follow_from_the_interval_when_they_are_not_listed(tmp_path: Path) -> None:
    config = make_config()
    source = write_tiny_gguf(tmp_path / "source.gguf", config)
    path = edit_gguf(source, tmp_path / "model.gguf", drop_keys=["qwen35.attention.recurrent_layers"])
    assert checkpoints.load(path, FAMILIES).config == config


def test_extra_metadata_are_kept(tmp_path: Path) -> None:
    extra = {"general.name": "tiny", "general.tags": ["a", "b"], "x.flag": True, "x.count": 3, "x.rate": 0.5}
    path = write_tiny_gguf(tmp_path / "model.gguf", make_config(), metadata=extra)
    metadata = checkpoints.load(path, FAMILIES).metadata
    assert {key: metadata[key] for key in extra} == extra


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    path = tmp_path / "model.gguf"
    write_tiny_gguf(path, make_config(), progress=lambda done, total: calls.append((done, total)))
    written = calls.copy()
    calls.clear()
    checkpoints.load(path, FAMILIES, progress=lambda done, total: calls.append((done, total)))
    for steps in (written, calls):
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == steps[-1][1] == checkpoints.describe(path, FAMILIES).num_bytes


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", make_config())
    before = path.read_bytes()

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tiny_gguf(path, make_config(moe=True), progress=fail)
    with pytest.raises(checkpoints.CheckpointError, match="metadata key x"):
        write_tiny_gguf(path, make_config(), metadata={"x": object()})
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.gguf"]
    assert path.read_bytes() == before


def test_description_reads_no_weights_and_names_what_is_there(tmp_path: Path) -> None:
    config = make_config()
    path = write_tiny_gguf(tmp_path / "model.gguf", config, weights="Q8_0")
    description = checkpoints.describe(path, FAMILIES)
    assert description.config == config
    assert description.has_mtp
    assert description.problems is None
    assert description.vocab_size == config.vocab_size
    embedding = next(tensor for tensor in description.tensors if tensor.name == "token_embd.weight")
    assert embedding == checkpoints.TensorInfo("token_embd.weight", (272, 64), "Q8_0", 272 * 2 * 34)


def test_widths_that_gguf_cannot_express_are_refused(tmp_path: Path) -> None:
    config = make_config(linear_value_width=16)
    with pytest.raises(checkpoints.ConfigError, match="linear_value_width is 16"):
        write_tiny_gguf(tmp_path / "model.gguf", config)
    assert not list(tmp_path.iterdir())
