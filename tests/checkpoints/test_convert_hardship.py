"""Conversions of what is larger than memory, on disks that are full, and of processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_disk
from large_model import convert, write_large
from tiny_checkpoints import make_config, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError, quantization
from checkpoints.atomic import replaced_folder, write_text
from checkpoints.convert import ConvertOptions, prepare, remove
from checkpoints.gguf.file import GGUFFile
from checkpoints.quantization import ImportanceMatrix, QuantizeOptions, write_imatrix
from checkpoints.quantization.imatrix import Entry
from specjax.models.registry import FAMILIES

SCRIPT = Path(__file__).with_name("large_model.py")
PATHS = os.pathsep.join([str(SCRIPT.parents[2]), str(SCRIPT.parent)])
ENVIRONMENT = os.environ | {"PYTHONPATH": PATHS, "JAX_PLATFORMS": "cpu"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_follows_the_largest_tensor_not_the_model(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "measure", str(tmp_path)]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    peaks = json.loads(ran.stdout.splitlines()[-1])
    assert len(peaks) == 10
    assert all(peak < 3 for peak in peaks.values()), peaks


SPLIT = 4_000_000
MANY_TIMES = (("gguf", SPLIT), ("hf", SPLIT), ("orbax", 0), ("quantize", 0), ("quantize", SPLIT))


@pytest.mark.parametrize(
    ("kind", "split", "times"),
    [
        ("gguf", 0, 3),
        pytest.param("orbax", 0, 3, marks=pytest.mark.slow),
        pytest.param("quantize", SPLIT, 3, marks=pytest.mark.slow),
        *(pytest.param(*case, 20, marks=pytest.mark.slow) for case in MANY_TIMES),
    ],
)
def test_a_killed_conversion_leaves_a_whole_model_or_none(kind: str, split: int, times: int, tmp_path: Path) -> None:
    """After every kill, whatever has a name is the whole result; and then the conversion can be run again."""
    source, folder = tmp_path / "source.gguf", tmp_path / "out"
    write_large(source, 4000, 4)
    folder.mkdir()
    destination = folder / ("model.gguf" if kind in ("gguf", "quantize") else "model")
    command = [sys.executable, str(SCRIPT), "kill", *map(str, (source, destination, kind, split, times))]
    states = []
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            states.append(_state(kind, source, folder, json.loads(line)))
            process.stdin.write("\n")
            process.stdin.flush()
    assert len(states) == times
    assert "none" in states
    convert(source, destination, kind, split or None)
    left = [path.name for path in folder.iterdir()]
    assert not [name for name in left if name.startswith(".")]
    assert _state(kind, source, folder, left) == "whole"


def _state(kind: str, source: Path, folder: Path, names: list[str]) -> str:
    """Whether a model is there; fails on anything between none and the whole. What is there is removed."""
    visible = sorted(folder / name for name in names if not name.startswith("."))
    if not visible:
        return "none"
    if "-of-" in visible[0].name and "-00001-of-" not in visible[0].name:
        for path in visible:
            with pytest.raises(CheckpointError, match="no such file"):
                GGUFFile(path)
        state = "none"
    elif kind == "quantize":  # what one that was not killed has made lies beside the folder
        wanted = {path.name.removeprefix("whole-"): path for path in folder.parent.glob("whole-*")}
        assert [path.name for path in visible] == sorted(wanted)
        assert all(path.read_bytes() == wanted[path.name].read_bytes() for path in visible)
        state = "whole"
    else:
        assert not prepare(source, folder / "unused.gguf", FAMILIES).compare(visible).wrong
        state = "whole"
    remove(visible)
    return state


# When a write fails, Orbax leaves others behind that complain later about a closed event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["gguf", "hf", "orbax"])
def test_a_full_disk_is_said_and_keeps_nothing(kind: str, tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    conversion = prepare(source, tmp_path / "model", FAMILIES, ConvertOptions(kind))  # type: ignore[arg-type]
    with full_disk(20_000), pytest.raises(CheckpointError, match=r"model: cannot be written: .*make room"):
        conversion.run()
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]
    conversion.run()
    assert checkpoints.describe(tmp_path / "model", FAMILIES).problems is None


def test_a_folder_goes_although_threads_still_write_into_it(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        end, number = time.monotonic() + 0.3, 0
        with suppress(FileNotFoundError):
            while time.monotonic() < end:
                (folder / f"{number}").touch()
                number += 1

    threads: list[threading.Thread] = []

    def fail() -> None:
        with replaced_folder(tmp_path / "model") as new:
            new.mkdir()
            threads.extend(threading.Thread(target=write, args=(new,)) for _ in range(3))
            for thread in threads:
                thread.start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for thread in threads:
        thread.join()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("split", [None, 40_000])
def test_a_full_disk_is_said_by_quantizations_and_importance_matrices(split: int | None, tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    plan = quantization.prepare(source, tmp_path / "q.gguf", FAMILIES, QuantizeOptions("Q8_0", split_bytes=split))
    with full_disk(20_000), pytest.raises(CheckpointError, match=r"cannot be written: .*make room"):
        plan.run()
    entries = {"blk.0.ffn_up.weight": Entry(np.ones((1, 8192), np.float32), np.ones(1, np.float32))}
    matrix = ImportanceMatrix(entries, ("text",), 1, 512)
    with full_disk(20_000), pytest.raises(CheckpointError, match=r"imatrix\.gguf: cannot be written: .*make room"):
        write_imatrix(tmp_path / "imatrix.gguf", matrix)
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]
    assert checkpoints.describe(plan.run(), FAMILIES).problems is None
    write_imatrix(tmp_path / "imatrix.gguf", matrix)


@pytest.mark.parametrize("kind", ["gguf", "hf", "orbax"])
def test_an_interrupt_keeps_what_was_there(kind: str, tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    older = write_tiny_gguf(tmp_path / "older.gguf", make_config(moe=True))
    prepare(older, tmp_path / "model", FAMILIES, ConvertOptions(kind)).run()  # type: ignore[arg-type]

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    conversion = prepare(source, tmp_path / "model", FAMILIES, ConvertOptions(kind, force=True))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        conversion.run(interrupt)
    assert checkpoints.describe(tmp_path / "model", FAMILIES).config == make_config(moe=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "older.gguf", "source.gguf"]


def test_a_folder_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    for kind in ("gguf", "hf", "orbax"):
        for folder in (source, tmp_path / "absent"):
            with pytest.raises(CheckpointError, match=f"there is no folder {folder}; make it first"):
                prepare(source, folder / "model", FAMILIES, ConvertOptions(kind))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="there is no folder"):
        quantization.prepare(source, tmp_path / "absent" / "q.gguf", FAMILIES, QuantizeOptions("Q8_0"))
    assert list(tmp_path.iterdir()) == [source]


def test_what_a_link_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    for text in ("new", "replaced"):
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["elsewhere", "target.json", "link.json"]
