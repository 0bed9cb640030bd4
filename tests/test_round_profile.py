"""Where the time of a round goes: what the benchmark reads of a profile, and that it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from small_model import write_small_model


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import round_profile

    yield round_profile
    sys.modules.pop("round_profile", None)


def plane(name: str, line: str, *events: tuple[str, int, int]) -> Any:
    made = [SimpleNamespace(name=name, start_ns=start, duration_ns=long) for name, start, long in events]
    return SimpleNamespace(name=name, lines=[SimpleNamespace(name=line, events=made)])


def test_streams_of_devices_are_read_and_else_the_threads_of_xla(profile: ModuleType) -> None:
    gpu = plane("/device:GPU:0", "Stream #13(Compute)", ("fusion", 100, 50), ("quant_matmul", 120, 80))
    other = plane("/device:GPU:0", "XLA Modules", ("jit_decode", 0, 900))
    host = plane("/host:CPU", "tf_XLAEigen/1", ("dot.1", 5, 7), ("ThunkExecutor::Execute", 0, 100))
    read = [(each.name, each.begin, each.end) for each in profile.kernels_in([gpu, other, host])]
    assert read == [("fusion", 100, 150), ("quant_matmul", 120, 200)]
    assert [each.name for each in profile.kernels_in([host])] == ["dot.1"]


def test_busy_is_what_anything_runs_in(profile: ModuleType) -> None:
    spans = [(0, 10), (5, 8), (8, 12), (16, 20)]
    assert profile.busy([profile.Kernel("x", begin, end) for begin, end in spans]) == 16 / 20
    assert profile.busy([]) == 0


def test_kernels_of_a_model_are_listed(
    profile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_small_model(tmp_path / "small.gguf")
    given = [str(path), "--draft", "0", "1", "--slots", "256", "--most", "3"]
    monkeypatch.setattr(sys, "argv", ["round_profile.py", *given])
    profile.main()
    first, *tables = capsys.readouterr().out.splitlines()
    assert first.startswith("small.gguf, batch 1; ")
    assert len(tables) == 2 * 5
    for drafts, said in enumerate((tables[0], tables[5])):
        assert said.startswith(f"K = {drafts}: ")
        assert " kernels a round, busy 0." in said
