"""The GGUF container: what is read can be written again, byte for byte, whole or in parts, and never half."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType
from tiny_checkpoints import make_config, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError, FormatError
from checkpoints.atomic import replaced
from checkpoints.gguf import ggml_types
from checkpoints.gguf.file import GGUFFile
from checkpoints.gguf.ggml_types import GGML_TYPES, GGMLType, decode_rows
from checkpoints.gguf.stream import TensorEntry, write_stream
from checkpoints.gguf.values import GGUFValue, typed
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model

ARCHITECTURE = {"general.architecture": typed("", "qwen35")}


def copy(source: Path, target: Path, part_bytes: int | None = None) -> list[Path]:
    file = GGUFFile(source)
    entries = [TensorEntry(info.name, info.shape, GGML_TYPES[info.type]) for info in file.tensors.values()]
    data = (file.read_blocks(entry.name) for entry in entries)
    return write_stream(target, file.values, entries, data, part_bytes=part_bytes)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("stream") / "model.gguf", make_config(moe=True), weights="Q8_0")


@pytest.mark.parametrize("name", ["bundled", "dense/llama", "gemma4/edge", "step3_5/flash"])
def test_a_copy_is_the_same_file(name: str, tmp_path: Path) -> None:
    """Files of llama.cpp's converter and quantizer, of gguf-py, and our own."""
    source = bundled_model() if name == "bundled" else Path(__file__).parents[1] / "fixtures" / name / "model.gguf"
    copy(source, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()


def test_every_value_keeps_its_type(tmp_path: Path) -> None:
    """A writer of gguf's own makes one key of each type, scalar and in a list."""
    numbers = dict(zip(GGUFValueType, [200, -5, 60000, -300, 2**32 - 1], strict=False))
    numbers |= {GGUFValueType.INT32: -(2**31), GGUFValueType.FLOAT32: 0.1, GGUFValueType.BOOL: True}
    numbers |= {GGUFValueType.UINT64: 2**64 - 1, GGUFValueType.INT64: -(2**63), GGUFValueType.FLOAT64: 0.1}
    writer = gguf.GGUFWriter(tmp_path / "source.gguf", "qwen35")
    for kind, value in (numbers | {GGUFValueType.STRING: "é\n"}).items():
        writer.add_key_value(f"one.{kind.name}", value, kind)
        writer.add_key_value(f"list.{kind.name}", [value] * 3, GGUFValueType.ARRAY, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "source.gguf")
    assert file.values["list.UINT16"] == GGUFValue([60000] * 3, GGUFValueType.ARRAY, GGUFValueType.UINT16)
    copy(tmp_path / "source.gguf", tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "source.gguf").read_bytes()


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2**32, "UINT64"), (-1, "INT32"), (-(2**31) - 1, "INT64"), (2**31, "UINT32"), (True, "BOOL"), (1.0, "FLOAT32")],
)
def test_values_of_python_get_the_narrowest_type_of_at_least_32_bits(value: object, kind: str) -> None:
    assert typed("key", value).kind == GGUFValueType[kind]


def test_a_value_that_does_not_fit_its_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="metadata key x: 300 is no UINT8"):
        write_stream(tmp_path / "m.gguf", {"x": GGUFValue(300, GGUFValueType.UINT8)}, [], [])
    for value in (2**64, [1, "a"], [], None):
        with pytest.raises(CheckpointError, match="metadata key x: cannot write"):
            typed("x", value)
    assert not list(tmp_path.iterdir())


def test_parts_hold_to_their_size_and_are_one_model_again(quantized: Path, tmp_path: Path) -> None:
    paths = copy(quantized, tmp_path / "model.gguf", part_bytes=60_000)
    assert len(paths) > 3
    count = len(paths)
    assert [path.name for path in paths] == [f"model-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    largest = max(info.num_bytes for info in GGUFFile(quantized).tensors.values())
    assert all(path.stat().st_size <= max(60_000, largest + 10_000) for path in paths)
    first, last = gguf.GGUFReader(paths[0]), gguf.GGUFReader(paths[-1])
    assert first.fields["split.count"].types == [GGUFValueType.UINT16]
    assert last.fields["split.no"].contents() == len(paths) - 1
    assert last.fields["split.tensors.count"].types == [GGUFValueType.INT32]
    copy(paths[1], tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == quantized.read_bytes()


def test_parts_of_two_models_are_no_model(quantized: Path, tmp_path: Path) -> None:
    paths = copy(quantized, tmp_path / "model.gguf", part_bytes=60_000)
    second = paths[1].read_bytes()
    shutil.copy(paths[2], paths[1])
    with pytest.raises(FormatError, match="says that it is part 3"):
        GGUFFile(paths[0])
    paths[1].write_bytes(second)
    count = len(gguf.GGUFReader(paths[-1]).tensors) + 1
    entries = [TensorEntry(f"x{i}", (4,), GGML_TYPES["F32"]) for i in range(count)]
    write_stream(paths[-1], {}, entries, [np.zeros(4, np.float32)] * count)
    with pytest.raises(FormatError, match="not of one model"):
        GGUFFile(paths[0])


def test_types_that_only_forks_know_are_written_and_read(tmp_path: Path) -> None:
    raw = np.arange(3 * 2 * 20, dtype=np.uint8).reshape(3, 40) % 50
    entry = TensorEntry("x", (3, 64), GGML_TYPES["TQ4_1S"])
    write_stream(tmp_path / "m.gguf", ARCHITECTURE, [entry], [raw])
    file = GGUFFile(tmp_path / "m.gguf")
    assert file.tensors["x"].type == "TQ4_1S"
    np.testing.assert_array_equal(file.read_blocks("x"), raw)
    assert file.can_read("x")
    assert np.isfinite(file.read("x", np.float32)).all()


def test_rows_of_forks_types_are_decoded_alike_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.arange(5 * 60, dtype=np.uint8).reshape(5, 60) % 50
    want = decode_rows(raw, GGML_TYPES["TQ4_1S"])
    assert want.shape == (5, 96)
    for blocks in (1, 4, 15):
        monkeypatch.setattr(ggml_types, "_PIECE", blocks)
        np.testing.assert_allclose(decode_rows(raw, GGML_TYPES["TQ4_1S"]), want, rtol=1e-5, atol=1e-6)


def test_a_type_that_nobody_knows_is_named(tmp_path: Path) -> None:
    entry = TensorEntry("x", (32,), GGMLType("new", 99, 32, 18))
    write_stream(tmp_path / "m.gguf", ARCHITECTURE, [entry], [bytes(18)])
    with pytest.raises(FormatError, match="tensor x has the type number 99"):
        GGUFFile(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([np.zeros(4, np.float32)], "no data were given for y"),
        ([np.zeros(4, np.float32), np.zeros(4, np.float16)], "y: F32 .* takes 16 bytes, but 8 were given"),
        ([np.zeros(4, np.float32)] * 3, "more than the 2 tensors"),
    ],
)
def test_data_must_be_those_of_the_table(data: list[np.ndarray], message: str, tmp_path: Path) -> None:
    entries = [TensorEntry(name, (4,), GGML_TYPES["F32"]) for name in "xy"]
    with pytest.raises(CheckpointError, match=message):
        write_stream(tmp_path / "m.gguf", ARCHITECTURE, entries, data)
    with pytest.raises(CheckpointError, match="no multiple of the 32 values"):
        write_stream(tmp_path / "m.gguf", {}, [dataclasses.replace(entries[0], type=GGML_TYPES["Q4_0"])], [b""])
    assert not list(tmp_path.iterdir())


def test_too_little_room_is_said_before_anything_is_written(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(CheckpointError, match=r"MB are to be written, but only 0\.0 MB are free"):
        copy(quantized, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part_bytes", [None, 60_000])
def test_a_disk_that_fills_up_keeps_nothing_new(part_bytes: int | None, quantized: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: both end in an error of `write`."""
    copy(quantized, tmp_path / "model.gguf", part_bytes)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"model.*\.gguf: cannot be written: File too large"):
            copy(quantized, tmp_path / "model.gguf", part_bytes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "model[1].gguf"
    script = "import os, sys; from pathlib import Path; from checkpoints.atomic import replaced\n"
    script += "with replaced(Path(sys.argv[1])) as t: t.write_bytes(bytes(10)); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with replaced(path) as mine:
        assert list(tmp_path.iterdir()) == [mine]
        with replaced(path) as other:  # a living writer's file is left alone
            other.write_text("first")
        assert mine.exists()
        mine.write_text("second")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "second"


def test_values_survive_a_model_that_is_read_and_written(quantized: Path, tmp_path: Path) -> None:
    """The high-level writer is built on the stream: its file is canonical."""
    copy(quantized, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == quantized.read_bytes()
    assert checkpoints.describe(tmp_path / "copy.gguf", FAMILIES).problems is None
