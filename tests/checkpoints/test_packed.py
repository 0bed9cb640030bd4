"""Matrices can stay as the file packs them: the same values, in the file's number of bytes."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from tiny_checkpoints import make_config, make_params, make_tokenizer

import checkpoints
from checkpoints.errors import DecodedWarning
from checkpoints.mapping.tree import flatten
from pallas_kernels.matmul import QTensor, dequantize
from specjax.models.registry import FAMILIES


def write(path: Path, moe: bool = False) -> Path:
    config = make_config(moe)
    checkpoints.write_gguf(path, FAMILIES, config, make_params(config), make_tokenizer(), weights="Q8_0")
    return path


@pytest.mark.parametrize("moe", [False, True])
def test_packed_matrices_have_the_values_of_decoded_ones(moe: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", moe)
    decoded = flatten(checkpoints.load(path, FAMILIES).params)
    packed = flatten(checkpoints.load(path, FAMILIES, packed="a8").params)
    quantized = {name for name, leaf in packed.items() if isinstance(leaf, QTensor)}
    assert "target.layers_0.delta_net.qkv_proj.weight" in quantized
    assert ("target.layers_0.moe.experts_gate" in quantized) == moe
    assert not any("norm" in name or "conv" in name for name in quantized)
    values = jax.jit(lambda: {name: dequantize(packed[name]) for name in quantized})()
    for name, leaf in packed.items():
        np.testing.assert_array_equal(values.get(name, leaf), decoded[name], err_msg=name)
        assert not isinstance(leaf, QTensor) or (leaf.act == "a8" and leaf.format == "Q8_0")


def test_packed_models_are_written_with_the_values_they_have(tmp_path: Path) -> None:
    first = checkpoints.load(write(tmp_path / "model.gguf"), FAMILIES, packed="a16")
    checkpoints.write_gguf(
        tmp_path / "again.gguf", FAMILIES, first.config, first.params, make_tokenizer(), weights="F32"
    )
    again, want = (
        checkpoints.load(tmp_path / "again.gguf", FAMILIES),
        checkpoints.load(tmp_path / "model.gguf", FAMILIES),
    )
    for a, b in zip(jax.tree.leaves(again.params), jax.tree.leaves(want.params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_loading_packed_takes_little_more_memory_than_the_file(tmp_path: Path) -> None:
    config = make_config(vocab_size=8192, width=256, mlp_width=2048)
    path = tmp_path / "model.gguf"
    checkpoints.write_gguf(path, FAMILIES, config, make_params(config), make_tokenizer(), weights="Q8_0")
    largest = max(tensor.num_bytes for tensor in checkpoints.describe(path, FAMILIES).tensors)
    tracemalloc.start()
    try:
        loaded = checkpoints.load(path, FAMILIES, packed="a16")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    result = sum(leaf.nbytes for leaf in jax.tree.leaves(loaded.params))
    assert result <= 1.1 * path.stat().st_size
    assert peak <= result + 3 * largest


def test_types_that_cannot_stay_packed_are_decoded_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf")
    source = gguf.GGUFReader(path)
    copy = tmp_path / "q2.gguf"
    writer = gguf.GGUFWriter(copy, "qwen35")
    for field in source.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(
                field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            )
    rng = np.random.default_rng(0)
    for tensor in source.tensors:
        if tensor.name == "blk.0.ffn_down.weight":
            values = rng.normal(size=tuple(reversed(tensor.shape.tolist()))).astype(np.float32)
            data = gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4)
            writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.warns(DecodedWarning, match=r"1 of type MXFP4.*decoded to float32.*Q8_0, Q4_0"):
        loaded = flatten(checkpoints.load(copy, FAMILIES, packed="a16").params)
    assert isinstance(loaded["target.layers_0.mlp.down_proj.weight"], jax.Array)
    assert isinstance(loaded["target.layers_0.mlp.up_proj.weight"], QTensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.load(copy, FAMILIES)
