"""Importance is measured where llama.cpp measures it, with the same result, for every family."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specjax
from checkpoints.gguf.file import GGUFFile
from checkpoints.quantization import read_imatrix
from specjax.analysis.calibration import collect_importance
from specjax.errors import PromptError

FIXTURES = Path(__file__).parent / "fixtures"
FAMILIES = ("dense/qwen3", "gemma4/edge", "gemma4/moe", "step3_5/flash")


def tokens(count: int) -> list[int]:
    return np.random.default_rng(0).integers(0, 256, count).tolist()


def test_statistics_are_those_of_llama_cpp() -> None:
    """Of every expert too; the columns of some matrices have another order in the file than in the model."""
    model = specjax.load(FIXTURES / "qwen3_5/moe/model.gguf")
    text = (FIXTURES.parents[1] / "LICENSE").read_text()
    ours = collect_importance(model, text, chunk_size=64, max_chunks=3)
    theirs = read_imatrix(FIXTURES / "quantized" / "moe_imatrix.gguf")
    assert (ours.chunk_count, ours.chunk_size) == (theirs.chunk_count, theirs.chunk_size)
    assert ours.entries.keys() == theirs.entries.keys()
    for name, want in theirs.entries.items():
        np.testing.assert_array_equal(ours.entries[name].counts, want.counts, err_msg=name)
        np.testing.assert_allclose(ours.entries[name].sums, want.sums, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_of_the_trunks_layers_is_measured(family: str) -> None:
    model = specjax.load(FIXTURES / family / "model.gguf")
    matrix = collect_importance(model, tokens(48), chunk_size=16)
    file = GGUFFile(FIXTURES / family / "model.gguf")
    head = {name for name in file.tensors if name.startswith(tuple(head_blocks(file)))}
    matrices = {
        name
        for name, tensor in file.tensors.items()
        if name.startswith("blk.") and len(tensor.shape) > 1 and "conv1d" not in name
    }
    assert matrix.entries.keys() == matrices - head
    matrix.check({name: tensor.shape for name, tensor in file.tensors.items()})
    assert matrix.chunk_count == 3
    for name, entry in matrix.entries.items():
        experts = file.tensors[name].shape[0] if len(file.tensors[name].shape) == 3 else 1
        assert len(entry.counts) == experts
        assert entry.counts.sum() in (48, 48 * model.config.moe.experts_per_token if experts > 1 else 48), name


def head_blocks(file: GGUFFile) -> list[str]:
    architecture = file.metadata["general.architecture"]
    layers = file.metadata[f"{architecture}.block_count"]
    heads = file.metadata.get(f"{architecture}.nextn_predict_layers", 0)
    return [f"blk.{i}." for i in range(layers - heads, layers)]


def test_text_that_is_too_short_is_refused() -> None:
    model = specjax.load(FIXTURES / "dense/llama/model.gguf")
    with pytest.raises(PromptError, match="48 tokens; 64 are needed"):
        collect_importance(model, tokens(48), chunk_size=64)
    with pytest.raises(PromptError, match="the model reads 1 to"):
        collect_importance(model, tokens(48), chunk_size=1 << 20)
