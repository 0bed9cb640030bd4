"""Files of drafters: there and back again in all formats, and what is refused.

The drafters are those of tests/fixtures, as their trainers wrote them.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
from drafter_fixtures import FIXTURES, TARGET
from fixture_models import assert_same_model
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file
from tiny_checkpoints import assert_same

import checkpoints
from checkpoints import ConfigError
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.quantization import QuantizeOptions
from checkpoints.quantization import prepare as prepare_quantization
from checkpoints.safetensors.file import SafetensorsDirectory
from checkpoints.verifier import verify
from specjax.models.drafters.dflash.parameters import init_params
from specjax.models.registry import FAMILIES

EAGLES = tuple(f"eagle3/{name}" for name in ("specforge", "specforge_wide", "speculators", "speculators_qwen3"))
DRAFTERS = (
    *EAGLES,
    "eagle3/speculators_layers",
    *(f"dflash/{name}" for name in ("specforge", "specforge_sliding", "speculators", "speculators_non_causal")),
    "dflash/dflash2",
    *(f"dspark/{name}" for name in ("specforge_vanilla", "specforge_rnn", "speculators_vanilla")),
    *(f"dspark/{name}" for name in ("speculators_gated", "speculators_rnn")),
)
LAYERS_SAID = {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}
# What is needed beside the file, and what a GGUF cannot say.
IN_GGUF: dict[str, dict[str, Any]] = {
    "eagle3/specforge": LAYERS_SAID,
    "eagle3/speculators": {},
    "dflash/specforge": {},
    "dspark/speculators_vanilla": {},
}
NOT_IN_GGUF = {
    "eagle3/specforge": ("does not say which layers",),
    "eagle3/specforge_wide": ("fc_norm", "norm_output"),
    "eagle3/speculators_qwen3": ("normed queries and keys", "fc_norm", "norm_output"),
    "eagle3/speculators_layers": ("several layers", "normed queries", "norm_output", "the target's output head"),
    "dflash/specforge_sliding": ("some are causal",),
    "dflash/speculators": ("some are causal", "count from the block's first"),
    "dflash/speculators_non_causal": ("count from the block's first",),
    "dflash/dflash2": ("count from the block's first",),
    "dspark/specforge_vanilla": ("hidden states alone",),
    "dspark/specforge_rnn": ("a gate or a recurrence",),
    "dspark/speculators_gated": ("a gate or a recurrence",),
    "dspark/speculators_rnn": ("a gate or a recurrence", "hidden states alone"),
}


def changed(name: str, folder: Path, change: dict[str, Any], drop: tuple[str, ...] = ()) -> Path:
    """The drafter with other values in config.json, without some keys, in a new folder."""
    shutil.copytree(FIXTURES / name, folder)
    document = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in {**document, **change}.items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def converted(source: Path, target: Path, kind: Any) -> Path:
    """The converted drafter, in which nothing differs from the source."""
    conversion = prepare(source, target, FAMILIES, ConvertOptions(kind, tokenizer=TARGET if kind == "gguf" else None))
    assert not conversion.compare(conversion.run()).wrong
    return target


def as_gguf(name: str, folder: Path) -> Path:
    """A GGUF file of the drafter."""
    return converted(changed(name, folder / "source", IN_GGUF[name]), folder / "drafter.gguf", "gguf")


def load(path: Path) -> checkpoints.Checkpoint:
    return checkpoints.load(path, FAMILIES, need_tokenizer=False)


@pytest.mark.parametrize("name", DRAFTERS)
def test_good_drafters_have_no_findings_and_go_through_orbax_bit_by_bit(name: str, tmp_path: Path) -> None:
    assert not verify(FIXTURES / name, FAMILIES).findings
    orbax = converted(FIXTURES / name, tmp_path / "drafter.orbax", "orbax")
    assert not verify(orbax, FAMILIES).findings
    assert_same_model(load(orbax), load(FIXTURES / name))
    again = converted(orbax, tmp_path / "hf", "hf")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (again, FIXTURES / name))
    assert ours.keys() == theirs.keys()
    for tensor, values in theirs.items():
        assert (ours[tensor].dtype, ours[tensor].shape) == (values.dtype, values.shape)
        assert ours[tensor].tobytes() == values.tobytes()
    written = json.loads((again / "config.json").read_text())
    assert written == json.loads((FIXTURES / name / "config.json").read_text())


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_is_written_from_the_config_alone_is_the_same_drafter(name: str, tmp_path: Path) -> None:
    """In one of the two forms of config.json, whichever can express it."""
    want = load(FIXTURES / name)
    checkpoints.write_hf(tmp_path, FAMILIES, want.config, want.params, None)
    assert_same_model(load(tmp_path), want)
    assert not verify(tmp_path, FAMILIES).findings


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_drafter_goes_through_gguf(name: str, tmp_path: Path) -> None:
    """`d2t` has the target's tokens there, and distances to them in Hugging Face's form."""
    file = as_gguf(name, tmp_path)
    want, written = load(tmp_path / "source"), GGUFFile(file)
    assert not verify(file, FAMILIES).findings
    assert_same_model(load(file), want)
    back = converted(file, tmp_path / "back", "hf")
    assert_same_model(load(back), want)
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    assert ("d2t" in written.tensors) == ("d2t" in tensors)
    if "d2t" in tensors:
        offsets = tensors["d2t"]
        assert offsets.any()
        reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
        assert reader["d2t"].tensor_type == GGMLQuantizationType.I64
        np.testing.assert_array_equal(reader["d2t"].data, offsets + np.arange(len(offsets)))
        np.testing.assert_array_equal(np.flatnonzero(tensors["t2d"]), reader["d2t"].data)
        np.testing.assert_array_equal(load_file(back / "model.safetensors")["d2t"], offsets)


def test_rows_of_queries_and_keys_are_paired_in_an_eagle3_gguf(tmp_path: Path) -> None:
    """Halves of a head rotate together in Hugging Face's form, and neighbours do in llama.cpp; not so in a DFlash."""
    file, heads, width = as_gguf("eagle3/speculators", tmp_path / "eagle3"), 4, 8
    source = SafetensorsDirectory(tmp_path / "eagle3" / "source")
    for ours, theirs, count in (("attn_q", "q_proj", heads), ("attn_k", "k_proj", heads // 2)):
        rows = source.read(f"layers.0.self_attn.{theirs}.weight", np.float32)
        paired = rows.reshape(count, 2, width // 2, -1).swapaxes(1, 2).reshape(rows.shape)
        np.testing.assert_array_equal(GGUFFile(file).read(f"blk.0.{ours}.weight", np.float32), paired)
    block = GGUFFile(as_gguf("dflash/specforge", tmp_path / "dflash"))
    rows = SafetensorsDirectory(FIXTURES / "dflash/specforge").read("layers.1.self_attn.q_proj.weight", np.float32)
    np.testing.assert_array_equal(block.read("blk.1.attn_q.weight", np.float32), rows)


@pytest.mark.parametrize("family", ["eagle3", "dflash", "dspark"])
def test_a_gguf_has_what_llama_cpp_writes(family: str, tmp_path: Path) -> None:
    """Tensors by name, type of integers, shape and values, and the metadata that are read."""
    folder = FIXTURES / family / "llama_cpp"
    file = converted(folder / "hf", tmp_path / "drafter.gguf", "gguf")
    ours, theirs = GGUFFile(file), GGUFFile(folder / "model.gguf")
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, info in theirs.tensors.items():
        assert ours.tensors[name].shape == info.shape
        assert (ours.tensors[name].type == "I64") == (info.type == "I64") == (name == "d2t")
        np.testing.assert_array_equal(ours.read(name, np.float32), theirs.read(name, np.float32))
    read = [key for key in theirs.metadata if key.startswith(f"{theirs.metadata['general.architecture']}.")]
    read += [key for key in theirs.metadata if key in ("general.architecture", "tokenizer.ggml.mask_token_id")]
    assert {key: ours.metadata.get(key) for key in read} == {key: theirs.metadata[key] for key in read}
    assert_same_model(load(file), load(folder / "model.gguf"))


def test_convolutions_and_a_selector_go_through_gguf(tmp_path: Path) -> None:
    """A DFlash 2 whose windows are counted from each slot, which is the kind that GGUF has."""
    trained = load(FIXTURES / "dflash/dflash2").config
    config = replace(trained, window_from="slot", causal=(False,) * len(trained.windows))
    assert config.selector is not None
    assert config.convolution is not None
    assert any(config.windows)
    shapes = jax.eval_shape(partial(init_params, config), jax.eval_shape(lambda: jax.random.key(0)))
    rng = np.random.default_rng(5)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    tokenizer = checkpoints.load(TARGET, FAMILIES).tokenizer
    assert tokenizer is not None
    file = tmp_path / "drafter.gguf"
    checkpoints.write_gguf(file, FAMILIES, config, params, tokenizer)
    written = GGUFFile(file)
    assert {"selector_hidden.weight", "selector_predecessor.weight", "selector_successor.weight"} <= set(
        written.tensors
    )
    for part in ("attn_conv_base", "attn_conv_proj.weight", "ffn_conv_base", "ffn_conv_proj.weight"):
        assert f"blk.{len(config.windows) - 1}.{part}" in written.tensors
    assert not verify(file, FAMILIES).findings
    got = load(file)
    assert got.config == config
    assert_same(got.params, params, rtol=0)


@pytest.mark.parametrize("name", NOT_IN_GGUF)
def test_what_gguf_cannot_say_is_refused_with_all_reasons(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(FIXTURES / name, tmp_path / "no.gguf", FAMILIES, ConvertOptions("gguf", tokenizer=TARGET))
    assert all(reason in str(refused.value) for reason in NOT_IN_GGUF[name])
    assert not (tmp_path / "no.gguf").exists()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["eagle3/speculators", "dspark/speculators_vanilla"])
def test_a_quantized_drafter_keeps_its_tokens_and_norms(name: str, kind: str, tmp_path: Path) -> None:
    source = GGUFFile(as_gguf(name, tmp_path))
    quantized = GGUFFile(prepare_quantization(source.path, tmp_path / "q.gguf", FAMILIES, QuantizeOptions(kind)).run())
    kept = [name for name, info in source.tensors.items() if len(info.shape) == 1]
    assert "d2t" in kept
    before, after = ({each.name: each for each in gguf.GGUFReader(file.path).tensors} for file in (source, quantized))
    for tensor in kept:
        assert after[tensor].tensor_type == before[tensor].tensor_type
        np.testing.assert_array_equal(after[tensor].data, before[tensor].data)
    small = {info.type for name, info in quantized.tensors.items() if name not in kept}
    assert "Q8_0" in small
    assert not verify(quantized.path, FAMILIES).errors
    assert load(quantized.path).config == load(source.path).config
