"""Importance matrices are read as llama.cpp writes them, and refused when they are of another model."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import make_config, write_tiny_gguf

import checkpoints
from checkpoints.gguf.file import GGUFFile
from checkpoints.quantization import QuantizeOptions, encode, prepare, read_imatrix, write_imatrix
from checkpoints.quantization.imatrix import Entry, ImportanceMatrix
from specjax.models.registry import FAMILIES

FIXTURE = Path(__file__).parents[1] / "fixtures" / "quantized" / "moe_imatrix.gguf"


def random_matrix(tensors: dict[str, tuple[int, ...]], seed: int = 0) -> ImportanceMatrix:
    rng = np.random.default_rng(seed)
    entries = {
        name: Entry(
            rng.gamma(0.3, size=(shape[0] if len(shape) == 3 else 1, shape[-1])).astype(np.float32),
            np.full(shape[0] if len(shape) == 3 else 1, 64, np.float32),
        )
        for name, shape in tensors.items()
    }
    return ImportanceMatrix(entries, ("text.txt",), 3, 64)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    matrix = random_matrix({"blk.0.ffn_up.weight": (96, 64), "blk.0.ffn_up_exps.weight": (4, 32, 64)})
    write_imatrix(tmp_path / "imatrix.gguf", matrix)
    again = read_imatrix(tmp_path / "imatrix.gguf")
    assert (again.datasets, again.chunk_count, again.chunk_size) == (matrix.datasets, 3, 64)
    assert again.entries.keys() == matrix.entries.keys()
    for name, entry in matrix.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(again.entries[name].counts, entry.counts)


def test_files_are_laid_out_as_llama_cpp_lays_them_out(tmp_path: Path) -> None:
    matrix = read_imatrix(FIXTURE)
    write_imatrix(tmp_path / "again.gguf", matrix)
    theirs, ours = GGUFFile(FIXTURE), GGUFFile(tmp_path / "again.gguf")
    assert ours.values == theirs.values
    assert ours.tensors == theirs.tensors
    for name in theirs.tensors:
        np.testing.assert_array_equal(ours.read_blocks(name), theirs.read_blocks(name))


def test_the_old_form_is_read(tmp_path: Path) -> None:
    """Its sums are means, times a number of calls."""
    sums, name, text = np.arange(8, dtype=np.float32), b"blk.0.ffn_up.weight", b"text.txt"
    raw = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 4, 8) + sums.tobytes()
    path = tmp_path / "imatrix.dat"
    path.write_bytes(raw + struct.pack("<ii", 7, len(text)) + text)
    matrix = read_imatrix(path)
    assert (matrix.datasets, matrix.chunk_count) == (("text.txt",), 7)
    np.testing.assert_array_equal(matrix.of("blk.0.ffn_up.weight", (3, 8)), sums / 4)


def test_experts_that_saw_nothing_count_all_columns_alike() -> None:
    entry = Entry(np.array([[2, 4], [0, 0]], np.float32), np.array([2, 0], np.float32))
    np.testing.assert_array_equal(entry.means(), [[1, 2], [1, 1]])


def test_every_matrix_is_encoded_with_what_is_known_of_it(tmp_path: Path) -> None:
    source = GGUFFile(write_tiny_gguf(tmp_path / "source.gguf", make_config(moe=True)))
    names = ("blk.0.attn_qkv.weight", "blk.1.ffn_down_exps.weight")
    matrix = random_matrix({name: source.tensors[name].shape for name in names})
    plan = prepare(source.path, tmp_path / "q.gguf", FAMILIES, QuantizeOptions("IQ4_NL"), matrix)
    written = GGUFFile(plan.run())
    unknown = {tensor.source.name for tensor in plan.without_importance}
    assert "blk.0.attn_gate.weight" in unknown
    assert not unknown & set(names)
    for name in names:
        values = source.read(name, np.float32)
        expected = encode(values, "IQ4_NL", matrix.of(name, values.shape))
        np.testing.assert_array_equal(written.read_blocks(name), expected)
        assert not np.array_equal(expected, encode(values, "IQ4_NL"))
    assert written.metadata["quantize.imatrix.chunks_count"] == 3
    assert written.metadata["quantize.imatrix.dataset"] == "text.txt"


def test_matrices_of_other_models_are_refused(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    options = QuantizeOptions("Q4_0")
    with pytest.raises(checkpoints.CheckpointError, match="none of the model's tensors"):
        prepare(source, tmp_path / "q.gguf", FAMILIES, options, random_matrix({"blk.99.ffn_up.weight": (8, 64)}))
    with pytest.raises(checkpoints.CheckpointError, match=r"blk\.0\.ffn_up\.weight .* belongs to another model"):
        prepare(source, tmp_path / "q.gguf", FAMILIES, options, random_matrix({"blk.0.ffn_up.weight": (96, 32)}))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, "no such file"),
        (b"", "neither a GGUF nor an importance matrix"),
        (b"\x01\x00\x00\x00\xff\x00\x00\x00abc", "neither a GGUF nor an importance matrix"),
        (bytes(64), "there are no entries"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, raw: bytes | None, message: str) -> None:
    path = tmp_path / "file"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(checkpoints.CheckpointError, match=message):
        read_imatrix(path)


def test_models_are_no_importance_matrices(tmp_path: Path) -> None:
    with pytest.raises(checkpoints.CheckpointError, match="'model', and no importance matrix"):
        read_imatrix(write_tiny_gguf(tmp_path / "model.gguf", make_config()))


def test_sums_that_are_no_sums_of_squares_are_refused(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf, -1):
        entry = Entry(np.full((1, 8), bad, np.float32), np.ones(1, np.float32))
        write_imatrix(tmp_path / "bad.gguf", ImportanceMatrix({"blk.0.x.weight": entry}, ("t",), 1, 8))
        with pytest.raises(checkpoints.CheckpointError, match="must be finite and not negative"):
            read_imatrix(tmp_path / "bad.gguf")
