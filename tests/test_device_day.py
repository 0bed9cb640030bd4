"""The day with a device: slices leave what they found, go on where they were, and are kept within their time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pallas_kernels.table import TABLE


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import device_day

    yield device_day
    sys.modules.pop("device_day", None)


def do(day: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["device_day.py", "cpu", "--out", str(out), *options])
    return day.main()


def test_every_kernel_has_a_slice(day: ModuleType, tmp_path: Path) -> None:
    assert {operation for some in day.KERNELS.values() for operation in some} == TABLE.keys()
    for platform in day.MODELS:
        names = [each.name for each in day.slices(platform, tmp_path)]
        assert len(set(names)) == len(names)
        assert all(each.limit < 600 for each in day.slices(platform, tmp_path))


def test_slices_leave_what_they_found_and_the_next_time_does_what_did_not_pass(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "import json; print(json.dumps({'machine': 'a device'}))"
    bad = f"import os, sys; sys.exit(0 if os.path.exists({str(tmp_path / 'mended')!r}) else 'no such device')"

    def slices(platform: str, out: Path) -> Iterator[object]:
        yield day.Slice("device", (sys.executable, "-c", good), figures=True)
        yield day.Slice("kernels-rows", (sys.executable, "-c", bad))
        yield day.Slice("endless", (sys.executable, "-c", "while True: pass"), limit=0.5)

    monkeypatch.setattr(day, "slices", slices)
    assert do(day, monkeypatch, tmp_path) == 2
    outcomes = json.loads((tmp_path / "day.json").read_text())
    assert {name: each["status"] for name, each in outcomes["slices"].items()} == {
        "device": "passed",
        "kernels-rows": "failed",
        "endless": "out of time",
    }
    assert outcomes["slices"]["kernels-rows"]["said"] == "no such device"
    assert outcomes["figures"] == {"device": {"machine": "a device"}}
    assert "# Measured on a device" in (tmp_path / "day.md").read_text()
    (tmp_path / "mended").touch()
    capsys.readouterr()
    assert do(day, monkeypatch, tmp_path) == 1
    said = capsys.readouterr().out
    assert "device, at most" not in said
    assert "kernels-rows, at most 570 s ... passed" in said
    assert do(day, monkeypatch, tmp_path, "--only", "device") == 1
    assert capsys.readouterr().out.startswith("device, at most 570 s ... passed")
    assert do(day, monkeypatch, tmp_path, "--list") == 1
    assert "endless                  out of time" in capsys.readouterr().out


def test_a_slice_whose_time_is_over_can_tidy_up(day: ModuleType, tmp_path: Path) -> None:
    """As after Ctrl-C. On a TPU a note of what was tried would else be taken for that of a crash."""
    tidy = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('tidied up')"
    outcome = day.run(day.Slice("endless", (sys.executable, "-c", tidy), limit=2), tmp_path)
    assert (outcome.status, outcome.said) == ("out of time", "tidied up")


def test_figures_of_kernels_and_models_become_tables(day: ModuleType) -> None:
    fast = {"operation": "hadamard", "sizes": "N=8", "impl": "xla_matmul", "seconds": 2e-6, "share_of_limit": 0.5}
    refused = {"operation": "hadamard", "sizes": "N=8", "impl": "pallas_gpu", "refused": "Error: no"}
    speed = {"draft": 3, "tokens_per_second": 100, "tokens_per_round": 2.5, "round": 0.025, "speedup": 1.9}
    found = {
        "kernels-rows": {"results": [{**fast, "times_as_fast_as_xla": 1.0, "error": 0.0}, refused]},
        "model-27b": {"speeds": [speed]},
        "llama.cpp-27b": [{"n_prompt": 0, "n_gen": 128, "avg_ts": 50.0}],
    }
    text = day.page({"device": day.Outcome("passed", 1.5, "")}, found)
    assert "| hadamard | N=8 | xla_matmul | 2.0 | 0.50 | 1.00 | 0e+00 |" in text
    assert "| hadamard | N=8 | pallas_gpu | Error: no | | | |" in text
    assert "| 27b | 3 | 100.00 | 2.50 | 25.00 | 1.90 |" in text
    assert "| llama.cpp-27b | | 0+128: 50.0 | | | |" in text
    assert "| device | passed | 1.5 |" in text


@pytest.mark.slow
def test_a_whole_day_on_a_cpu(day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small sizes of everything that runs on a device; several minutes."""
    monkeypatch.setenv("SPECJAX_TUNED", str(tmp_path / "tuned"))
    assert do(day, monkeypatch, tmp_path) == 0
    found = json.loads((tmp_path / "day.json").read_text())["figures"]
    assert {"device", *(f"kernels-{name}" for name in day.KERNELS)} <= found.keys()
    assert any(name.startswith("model-") for name in found)
    assert not (tmp_path / "random.gguf").exists()
    assert list((tmp_path / "tuned").glob("*.json"))
