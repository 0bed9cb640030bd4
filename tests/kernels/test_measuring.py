"""Kernels are measured in a process that may crash; what is fastest and right is chosen, and remembered."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from fake_kernels import OPERATIONS, case_of, on_host
from measured import DIMS, QUICK, choice, process

from pallas_kernels import memory, using
from pallas_kernels.choices import Choice, key_of
from pallas_kernels.dispatch import Implementation, Operation, choose, explain
from pallas_kernels.measuring import measure, timing, worth_measuring
from pallas_kernels.measuring.agreement import largest_error
from pallas_kernels.measuring.measure import _workers
from pallas_kernels.measuring.timing import Effort
from pallas_kernels.measuring.turns import Turns
from pallas_kernels.table import ANYWHERE


def test_what_is_slow_wrong_or_goes_under_is_passed_over_with_the_right_word(folder: Path) -> None:
    operation = OPERATIONS["bad"]
    assert choose(operation, None, DIMS).name == "usual"
    with pytest.warns(RuntimeWarning) as warned:
        report = measure([("bad", DIMS)], cases="fake_kernels", effort=QUICK)
    assert not report.unfinished
    (found,) = report.choices.values()
    assert {*found.order} == {"usual", "slow", "fast", "reads_all"}
    assert found.order[0] in ("fast", "reads_all")
    assert found.order[-1] == "slow"
    said = explain(operation, DIMS)
    for pattern in (
        rf" {found.order[0]} +chosen \(measured on cpu: [\d.]+ us against [\d.]+ us of \w+\)",
        r" slow +fits \(\d+ us\)",
        r" wrong +left out: results differ by 5e-02 on random input, where 1e-02 is accepted",
        r" leaking +left out: results differ by inf on cruel input",
        r" not_compiling +left out: did not compile: NotImplementedError: no such layout\n",
        r" crashing +left out: crashed: signal SIGABRT",
        r" failing +left out: failed when it ran, on random input: .*",
        r" unfit +passed over: by name only",
        r" reference +passed over: by name only",
    ):
        assert re.search(pattern, said), (pattern, said)
    assert choose(operation, None, DIMS).name == found.order[0]
    with using(measured=False):
        assert choose(operation, None, DIMS).name == "usual"
    warnings = [str(each.message) for each in warned]
    assert len(warnings) == len(found.left_out) == 5
    assert all("Please report this line, and {'device': 'cpu', 'machine': " in each for each in warnings)


def assert_given_up(unfinished: list[str]) -> None:
    """The calls "large", "lawless" and "starving" are, each for its own reason."""
    want_of_memory, law, killed = sorted(unfinished)
    assert killed == "starving rows=64 N=256: signal SIGKILL"
    assert want_of_memory.startswith("large ")
    assert "RESOURCE_EXHAUSTED" in want_of_memory
    assert law.startswith("lawless ")
    assert "crashed: signal SIGABRT" in law


def test_several_processes_time_in_turns_and_what_goes_wrong_costs_its_own_call_alone(folder: Path) -> None:
    """A kernel that hangs, a law that crashes, and want of memory: each in a process that has other calls too."""
    narrow = {**DIMS, "N": 64}
    calls = [
        # A column is what a process is given.
        *(("starving", DIMS), ("hanging", DIMS), ("good", DIMS)),
        *(("large", DIMS), ("good", narrow), ("lawless", DIMS)),
        *(("alone", DIMS), ("alone", narrow), ("good", {**DIMS, "N": 128})),
    ]
    wrong = ("large", "lawless", "starving")
    right = [call for call in calls if call[0] not in wrong]
    fewer_rows = ("good", {**DIMS, "rows": 8})
    assert sorted(worth_measuring([*right, fewer_rows]), key=str) == sorted(right, key=str)  # the most rows of a choice
    done: list[tuple[int, int]] = []
    with pytest.warns(RuntimeWarning, match=r"hanging endless is left out on cpu, .*: did not end within 6 seconds\."):
        report = measure(
            calls,
            cases="fake_kernels",
            effort=QUICK,
            patience=6,
            workers=3,
            progress=lambda *step: done.append(step),
        )
    assert [step for step, _ in done] == sorted(step for step, _ in done)
    assert done[-1] == (9, 9)
    assert_given_up(report.unfinished)
    assert report.choices.keys() == {key_of(*call) for call in right} == memory.remembered().keys()
    firsts = {key: choice.order[:1] for key, choice in report.choices.items()}
    assert firsts == {key_of(*call): () if call[0] == "alone" else ("fast",) for call in right}
    assert worth_measuring([*right, fewer_rows]) == []
    memory._known.clear()  # as in another process
    assert worth_measuring([*right, fewer_rows]) == []
    assert choose(OPERATIONS["good"], None, {**DIMS, "rows": 3}).name == "fast"
    assert len(worth_measuring([*right, fewer_rows], anew=True)) == 6


def test_what_hangs_takes_the_time_of_other_calls(folder: Path) -> None:
    calls = [("hanging", {**DIMS, "N": width}) for width in (64, 128)]
    with pytest.warns(RuntimeWarning, match="hanging endless is left out"):
        report = measure(calls, cases="fake_kernels", effort=QUICK, patience=3, budget=1)
    assert report.choices.keys() == {key_of(*calls[0])}
    assert report.unfinished == ["hanging rows=64 N=128: no time was left"]


def test_a_process_that_opens_another_device_measures_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_kernels.tuning.device_kind", lambda: "NVIDIA B200")
    report = measure([("good", DIMS)], cases="fake_kernels", effort=QUICK)
    assert not report.choices
    assert report.unfinished == ["good rows=64 N=256: a process of its own has another device, cpu"]


def test_where_all_that_fits_was_left_out_the_table_decides(folder: Path) -> None:
    """It may not have been their fault; and without any no model could run."""
    dims = {"N": 5}
    left_out = dict.fromkeys(OPERATIONS["good"].names(), "crashed: signal SIGABRT")
    found = Choice("good", dims, dims, (), {}, left_out)
    memory.remember({found.key: found})
    assert choose(OPERATIONS["good"], None, dims).name == "usual"
    assert re.search(r" usual +chosen\n", explain(OPERATIONS["good"], dims))


@pytest.mark.parametrize(
    ("gigabytes", "share", "workers"), [(16, None, 2), (24, None, 3), (80, None, 8), (80, "0.9", 4), (80, "1.0", 1)]
)
def test_processes_share_what_is_left_of_a_gpus_memory(
    gigabytes: int, share: str | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = int(gigabytes * 2**30 * float(share or 0.75))
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": pool})
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    if share is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", share)
    assert _workers() == workers


def test_one_process_times_when_no_other_compiles(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    path.touch()
    with Turns(str(path)) as first, Turns(str(path)) as second:
        assert list(first.with_others()) == list(second.with_others()) == []
        waiting = second.without_others(seconds=0.05)
        next(waiting)
        next(waiting)
        list(first.without_others())  # second has given way
        first_times = second.with_others(seconds=0.05)
        next(first_times)
        first.__exit__(None, None, None)
        assert list(first_times) == []
        assert list(second.without_others()) == []
    with Turns("") as only:
        assert only.alone
        assert list(only.with_others()) == list(only.without_others()) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_law_that_goes_wrong_and_want_of_memory_cost_their_calls_alone(folder: Path, workers: int) -> None:
    calls = [(name, DIMS) for name in ("good", "large", "lawless", "alone", "starving")]
    calls.append(("good", {**DIMS, "N": 128}))  # behind the lawless one, whether that process has all calls or half
    report = measure(calls, cases="fake_kernels", effort=QUICK, workers=workers)
    assert report.choices.keys() == {key_of(*call) for call in calls if call[0] in ("good", "alone")}
    assert_given_up(report.unfinished)


def test_what_comes_with_the_package_is_measured_here_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = choice(5)
    monkeypatch.setattr("pallas_kernels.tuning.choices", lambda: {found.key: found})
    assert worth_measuring([(found.operation, found.measured)]) == [(found.operation, found.measured)]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_time_is_that_of_one_call(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts the calls. A device makes more of them in a run than a CPU."""
    made, runs = count(), []

    def counting(x: np.ndarray) -> np.ndarray:
        next(made)
        return 2 * x

    def calls_in(run: Callable[[], Any], effort: Effort) -> float:
        before = next(made)
        jax.block_until_ready(run())
        runs.append(next(made) - before - 1)
        return float(runs[-1])

    operation = Operation("counted", (Implementation("counting", on_host(counting), ANYWHERE),))
    case = case_of(operation)(DIMS)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(timing, "best_seconds", calls_in)
    material = [case.make(seed) for seed in range(2)]
    assert timing.timing(case, "counting", material, QUICK)(material) == 1.0
    assert runs[0] == (2 if platform == "cpu" else 2 * timing.MOST_TURNS)


def test_what_cannot_be_measured_is_no_choice(folder: Path) -> None:
    """Where nothing can crash, this process measures: to start another one takes longer than the rest of the test."""
    report = measure([("good", {})], cases="fake_kernels", effort=QUICK, here=True)  # its case needs N
    assert not report.choices
    assert re.search(r"^good : KeyError: 'N'$", report.unfinished[0])
    report = measure([("good", DIMS)], cases="no_such_module", effort=QUICK)
    assert re.search(r"good rows=64 N=256: crashed: exit status 1.*no_such_module", report.unfinished[0])
    report = measure([("good", DIMS), ("bad", DIMS)], cases="fake_kernels", effort=QUICK, budget=0, here=True)
    assert len(report.choices) == 1
    assert report.unfinished == ["bad rows=64 N=256: no time was left"]
    assert worth_measuring([("good", DIMS), ("bad", DIMS)]) == [("bad", DIMS)], "the next time goes on there"
    assert worth_measuring([("good", DIMS), ("bad", DIMS)], anew=True)[0] == ("bad", DIMS)


MEASURER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes from what it starts in the background
from measured import DIMS, QUICK
from pallas_kernels.measuring import measure
calls = [("good", {**DIMS, "N": width}) for width in range(64, 164)]
measure(calls, cases="fake_kernels", effort=QUICK, progress=lambda *step: print(*step, flush=True))
"""


def children_of(pid: int) -> list[str]:
    """Numbers of the processes that one has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for thread in threads for child in thread.read_text().split()]


def wait_for(condition: Callable[[], Any]) -> Any:
    """What it gives as soon as it holds."""
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_ctrl_c_leaves_the_file_whole_and_no_process_behind(folder: Path) -> None:
    with process(MEASURER, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as measuring:
        assert measuring.stdout.readline() == "1 100\n"
        children = children_of(measuring.pid)
        measuring.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in measuring.communicate()[1]
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert 1 <= len(memory.remembered()) < 100
    assert {path.suffix for path in (folder / "kernels").iterdir()} == {".json", ".lock"}


HANGING = """
from measured import DIMS, QUICK
from pallas_kernels.measuring import measure
print("begins", flush=True)
measure([("hanging", DIMS)], cases="fake_kernels", effort=QUICK)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")
def test_no_process_is_left_behind_by_one_that_was_killed(folder: Path) -> None:
    """A kernel that hangs would keep the device from all others."""
    with process(HANGING, stdout=subprocess.PIPE) as measuring:
        assert measuring.stdout.readline() == "begins\n"
        children = wait_for(lambda: children_of(measuring.pid))
        measuring.kill()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


HERE = """
import sys
from measured import DIMS, QUICK
from pallas_kernels.measuring import measure
report = measure([("fatal", DIMS), ("good", DIMS)], cases="fake_kernels", effort=QUICK, here=True)
print(*[report.choices[key].left_out.get("crashing") for key in sorted(report.choices)])
"""


def test_what_crashes_this_process_is_not_tried_again(folder: Path) -> None:
    """On a device that no second process can open."""
    with process(HERE, stderr=subprocess.PIPE) as first:
        first.communicate()
    assert first.returncode == -signal.SIGABRT
    crashed = [(key_of("fatal", DIMS), "crashing")]
    assert memory.fatal() == crashed
    with memory.noted("a call of another model", "fast"):
        assert memory.fatal() == [*crashed, ("a call of another model", "fast")]
    assert memory.fatal() == crashed
    with process(HERE, stdout=subprocess.PIPE) as second:
        assert second.communicate()[0] == "crashed the process that tried it None\n"
    assert second.returncode == 0
    memory._known.clear()
    found = memory.remembered()[key_of("fatal", DIMS)]
    assert found.order[0] == "fast"
    assert re.match("failed when it ran", found.left_out["failing"])
    assert memory.fatal() == []


def test_numbers_agree_by_their_rms_and_at_their_peak() -> None:
    law = np.ones(1000)
    assert largest_error([law], [law]) == 0
    assert largest_error([law * 1.005], [law]) == pytest.approx(5e-3)
    one_off = law.copy()
    one_off[3] = 2
    assert largest_error([one_off], [law]) == pytest.approx(1 / 16)
    assert largest_error([law * np.nan], [law]) == np.inf
    special = np.array([np.nan, -np.inf, 1, 2])
    assert largest_error([special], [special]) == 0
    assert largest_error([np.array([np.nan, 0, 1, 2])], [special]) == np.inf
    assert largest_error([np.ones(3)], [np.zeros(3)]) == np.inf
