"""The day with a device: slices leave what they found, go on where they were, and are kept within their time."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pallas_kernels.table import TABLE

GOOD = "import json; print(json.dumps({'platform': 'cpu', 'device': 'a card', 'machine': 'a device'}))"


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import device_day

    monkeypatch.delenv("LLAMA_BENCH", raising=False)
    yield device_day
    for name in ("device_day", "day_page", "day_slices"):
        sys.modules.pop(name, None)


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def do(day: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["device_day.py", "cpu", "--out", str(out), *options])
    set_handler = signal.signal
    with monkeypatch.context() as patched:  # slices hear interrupts all the same
        patched.setattr(signal, "signal", lambda *given: set_handler(*given) if given[0] == signal.SIGINT else None)
        return day.main()


def work(day: ModuleType, monkeypatch: pytest.MonkeyPatch, *some: Any) -> None:
    """Let these be all slices, after one of a device."""
    monkeypatch.setattr(day, "device", lambda platform: day.Slice("device", python(GOOD), figures=True))
    monkeypatch.setattr(day, "slices", lambda platform, out: iter(some))


def statuses(out: Path) -> dict[str, str]:
    return {name: each["status"] for name, each in json.loads((out / "day.json").read_text())["slices"].items()}


def test_every_kernel_has_a_slice(day: ModuleType, tmp_path: Path) -> None:
    import day_slices

    assert {operation for some in day_slices.KERNELS.values() for operation in some} == TABLE.keys()
    for platform in day.MODELS:
        every = list(day.slices(platform, tmp_path))
        assert len({each.name for each in every}) == len(every)
        assert all(each.limit < 600 for each in every)
        names = [each.name for each in every]
        for each in every:
            depends = [names.index(name) for name in names if name.startswith(each.after or ("-",))]
            assert all(place < names.index(each.name) for place in depends), each.name
            assert bool(each.after) == (not each.name.startswith("tune-")) or each.name == "kernels-rows"


def test_slices_leave_what_they_found_and_the_next_time_does_what_did_not_pass(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = f"import os, sys; sys.exit(0 if os.path.exists({str(tmp_path / 'mended')!r}) else 'no such device')"
    endless = day.Slice("endless", python("import time; time.sleep(60)"), limit=0.5)
    work(day, monkeypatch, day.Slice("kernels-rows", python(bad)), endless)
    assert do(day, monkeypatch, tmp_path) == 1
    assert statuses(tmp_path) == {"device": "passed", "kernels-rows": "failed", "endless": "out of time"}
    content = json.loads((tmp_path / "day.json").read_text())
    assert content["slices"]["kernels-rows"]["said"] == "no such device"
    assert content["figures"]["device"]["machine"] == "a device"
    assert "# Measured on a device" in (tmp_path / "day.md").read_text()
    (tmp_path / "mended").touch()
    capsys.readouterr()
    assert do(day, monkeypatch, tmp_path) == 1
    assert "kernels-rows, at most 570 s ... passed" in capsys.readouterr().out
    assert do(day, monkeypatch, tmp_path, "--only", "kernels") == 1
    said = capsys.readouterr().out
    assert "kernels-rows, at most 570 s ... passed" in said
    assert "endless, at most" not in said
    assert do(day, monkeypatch, tmp_path, "--list") == 0
    assert "endless                  out of time" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        do(day, monkeypatch, tmp_path, "--only", "nothing")
    assert "there are device, kernels-rows, endless" in capsys.readouterr().err


def test_nothing_is_done_without_the_device_or_on_another_one(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def give(code: str) -> None:
        monkeypatch.setattr(day, "device", lambda platform: day.Slice("device", python(code), figures=True))

    work(day, monkeypatch, day.Slice("kernels-rows", python("pass")))
    give("import sys; sys.exit('no such device')")
    with pytest.raises(SystemExit, match="device: failed: no such device"):
        do(day, monkeypatch, tmp_path)
    assert statuses(tmp_path) == {"device": "failed"}
    give(GOOD)
    assert do(day, monkeypatch, tmp_path) == 0
    give(GOOD.replace("a card", "another"))
    with pytest.raises(SystemExit, match="has results of a card, and this is another: give another --out"):
        do(day, monkeypatch, tmp_path)
    assert json.loads((tmp_path / "day.json").read_text())["figures"]["device"]["device"] == "a card"


def test_the_platform_that_was_asked_for_must_be_there(day: ModuleType, tmp_path: Path) -> None:
    import day_slices

    run = partial(subprocess.run, cwd=day.ROOT, env={**os.environ, "PYTHONPATH": str(day.ROOT)}, capture_output=True)
    found = run(day_slices.device("cpu").command, check=True)
    assert json.loads(found.stdout)["platform"] == "cpu"
    missing = run(day_slices.device("tpu").command)
    assert b"JAX computes on the platform 'cpu', not 'tpu'" in missing.stderr
    assert missing.returncode == 1


def test_what_depends_on_a_slice_is_done_again_after_it(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fragile = f"import os, sys; sys.exit(not os.path.exists({str(tmp_path / 'mended')!r}))"
    model = day.Slice("model-x", python("print('{\"speeds\": []}')"), figures=True, after=("choices",))
    work(day, monkeypatch, day.Slice("choices", python(fragile)), model)
    assert do(day, monkeypatch, tmp_path) == 1
    (tmp_path / "mended").touch()
    capsys.readouterr()
    assert do(day, monkeypatch, tmp_path) == 0
    assert "model-x, at most 570 s ... passed" in capsys.readouterr().out
    assert do(day, monkeypatch, tmp_path) == 0
    assert "model-x" not in capsys.readouterr().out


def test_figures_stay_if_a_slice_that_passed_fails_when_it_is_done_again(
    day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"import os; print('[1' + (']' if not os.path.exists({str(tmp_path / 'broken')!r}) else 1 / 0))"
    work(day, monkeypatch, day.Slice("model-x", python(code), figures=True))
    monkeypatch.setattr(day, "page", lambda outcomes, found: "")
    assert do(day, monkeypatch, tmp_path) == 0
    (tmp_path / "broken").touch()
    assert do(day, monkeypatch, tmp_path, "--only", "model") == 1
    assert json.loads((tmp_path / "day.json").read_text())["figures"]["model-x"] == [1]


def test_kernels_are_gone_on_with_after_a_crash(day: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "crashes")
    code = f"import os; open({path!r}, 'a').write('x'); len(open({path!r}).read()) < 3 and os.abort()"
    with day.locked(tmp_path) as lock:
        outcome = day.run(day.Slice("kernels-rows", python(code), attempts=5), tmp_path, lock)
        assert outcome.status == "passed"
        assert (tmp_path / "crashes").read_text() == "xxx"
        assert day.run(day.Slice("x", python("import os; os.abort()"), attempts=2), tmp_path, lock).status == "failed"


@pytest.fixture
def in_the_background() -> Iterator[None]:
    """A program that a shell without a terminal starts with & ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_background")
def test_a_slice_whose_time_is_over_can_tidy_up(day: ModuleType, tmp_path: Path) -> None:
    """As after Ctrl-C. On a TPU a note of what was tried would else be taken for that of a crash."""
    tidy = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('tidied up')"
    with day.locked(tmp_path) as lock:
        outcome = day.run(day.Slice("endless", python(tidy), limit=2), tmp_path, lock)
    assert (outcome.status, outcome.said) == ("out of time", "tidied up")


@pytest.mark.usefixtures("in_the_background")
def test_a_model_is_removed_when_its_time_is_over(day: ModuleType, tmp_path: Path) -> None:
    model = next(each for each in day.slices("cpu", tmp_path) if each.name.startswith("model-"))
    (shell, option, script), file = model.command, tmp_path / "random.gguf"
    traps = script[: script.index(shlex.quote(sys.executable))]
    waiting = (shell, option, f"{traps} touch {shlex.quote(str(file))}; sleep 60")
    with day.locked(tmp_path) as lock:
        assert day.run(day.Slice("model-x", waiting, limit=2), tmp_path, lock).status == "out of time"
    assert not file.exists()


@pytest.mark.parametrize("nohup", [False, True])
def test_a_broken_connection_ends_the_slice_and_two_do_not_work_in_a_folder(
    day: ModuleType, nohup: bool, tmp_path: Path
) -> None:
    script = f"""
import sys, time; sys.path.insert(0, {str(day.ROOT / "benchmarks")!r})
import device_day as day
day.device = lambda platform: day.Slice("device", (sys.executable, "-c", {GOOD!r}), figures=True)
code = "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(60)"
day.slices = lambda platform, out: [day.Slice("sleeps", (sys.executable, "-c", code))]
sys.argv = ["device_day.py", "cpu", "--out", {str(tmp_path)!r}]
{"day.signal.signal(day.signal.SIGHUP, day.signal.SIG_IGN)" if nohup else ""}
sys.exit(day.main())
"""
    environment = {**os.environ, "PYTHONPATH": str(day.ROOT)}
    with subprocess.Popen(python(script), env=environment, stdout=subprocess.PIPE, text=True) as running:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert running.poll() is None
            time.sleep(0.05)
        second = subprocess.run(python(script), env=environment, capture_output=True, text=True)
        assert "still runs in" in second.stderr
        running.send_signal(signal.SIGHUP)
        if nohup:
            time.sleep(1)
            assert running.poll() is None
            running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=60)[0]
    assert running.returncode == 130
    assert "interrupted; the same command goes on" in said
    assert statuses(tmp_path)["sleeps"] == "interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_figures_of_kernels_and_models_become_tables(day: ModuleType) -> None:
    fast = {"operation": "hadamard", "sizes": "N=8", "impl": "xla_matmul", "seconds": 2e-6, "share_of_limit": 0.5}
    refused = {"operation": "hadamard", "sizes": "N=8", "impl": "pallas_gpu", "refused": "Error: no"}
    speed = {"draft": 3, "tokens_per_second": 100, "tokens_per_round": 2.5, "round": 0.025, "speedup": 1.9}
    measured = {**fast, "num_bytes": 4_000_000, "times_as_fast_as_xla": 1.0, "error": 0.0}
    found = {
        "device": {"machine": "a device", "commit": "abc"},
        "kernels-rows": {"bytes_per_second": 2e12, "results": [measured, refused]},
        "model-27b": {"speeds": [speed]},
        "llama.cpp-27b": [{"n_prompt": 0, "n_gen": 128, "avg_ts": 50.0}],
        "roofline-27b": "  measured round 2 ms, 50% of the limit\n",
        "tuned": {"choices": [{"operation": "rms_norm", "left_out": {"triton": "crashed"}}]},
    }
    text = day.page({"device": {"status": "passed", "seconds": 1.5}}, found)
    assert "# Measured on a device\n\n* commit: abc\n" in text
    assert "| hadamard | N=8 | xla_matmul | 2.0 | 4.00 | 0.50 | 1.00 | 0e+00 |" in text
    assert "| hadamard | N=8 | pallas_gpu | Error: no | | | | |" in text
    assert "| copy rate of kernels-rows | | | | | 2000 GB/s | | |" in text
    assert "| 27b | 3 | 100.00 | 2.50 | 25.00 | 1.90 |" in text
    assert "| llama.cpp-27b | | 0+128: 50.0 | | | |" in text
    assert "roofline-27b:\n\n```text\n  measured round 2 ms, 50% of the limit\n```\n" in text
    assert "| rms_norm | triton | crashed |" in text
    assert "| device | passed | 1.5 |" in text


@pytest.mark.slow
def test_a_whole_day_on_a_cpu(day: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small sizes of everything that runs on a device; several minutes."""
    import day_slices

    monkeypatch.setenv("SPECJAX_TUNED", str(tmp_path / "tuned"))
    assert do(day, monkeypatch, tmp_path) == 0
    found = json.loads((tmp_path / "day.json").read_text())["figures"]
    assert {"device", "tuned", *(f"kernels-{name}" for name in day_slices.KERNELS)} <= found.keys()
    assert any(name.startswith("model-") for name in found)
    assert any(name.startswith("roofline-") and "of the limit" in text for name, text in found.items())
    assert not (tmp_path / "random.gguf").exists()
    assert list((tmp_path / "tuned").glob("*.json"))
