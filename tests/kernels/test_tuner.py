"""The tuner goes on where it was, keeps nothing wrong, and gets past what hangs or crashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tune, tuning
from pallas_kernels.cache_attention.examples import full_cache
from pallas_kernels.causal_conv1d.example import example as convolution
from pallas_kernels.gated_delta.config import example_records, example_slots
from pallas_kernels.hadamard import xla_matmul
from pallas_kernels.hadamard.example import example as hadamard
from pallas_kernels.matmul.operands import example as product
from pallas_kernels.measuring import contest
from pallas_kernels.measuring.attempts import Attempts

Config = xla_matmul.Config
COMPILE = jax.stages.Lowered.compile
SMALL, LARGE = {"N": 64}, {"N": 128}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of winners of this test's own."""
    monkeypatch.setenv(tuning.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a kernel of one's own the only one there is: its rule takes block 8, other candidates are 16 and 32."""

    def make(run: Callable[..., Any], blocks: Sequence[int] = (8, 16, 32)) -> None:
        monkeypatch.setattr(tuning, "_TUNABLES", {})
        replace(
            xla_matmul.TUNABLE,
            heuristic=lambda dims: Config(blocks[0]),
            candidates=lambda dims: [Config(block) for block in blocks],
            shapes=(SMALL, LARGE),
            run=run,
        )

    return make


def double(x: jax.Array, *, config: Any) -> jax.Array:
    return 2 * x


def run_tuner(*argv: str) -> int:
    return tune.main(["--seconds", "0.0001", *argv])


def measured(folder: Path) -> list[tuple[int, int]]:
    """N and the block of each winner."""
    winners = tuning.read(folder / "cpu.json", "cpu").winners
    return [(winner.dims["N"], winner.config.block) for winner in winners]


def test_what_is_known_is_not_measured_again(
    folder: Path, kernel: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupt loses the size under way alone, and the next run begins with it."""
    traced: list[tuple[int, int]] = []

    def run(x: jax.Array, *, config: Any) -> jax.Array:
        traced.append((x.shape[-1], config.block))
        if interrupted and x.shape[-1] == LARGE["N"]:
            raise KeyboardInterrupt
        return 2 * x

    kernel(run, blocks=(8, 16))
    interrupted = True
    assert run_tuner() == 130
    assert [n for n, _ in measured(folder)] == [64]
    assert "interrupted: 1 of 2 sets of sizes measured, 0 known before" in capsys.readouterr().out

    interrupted = False
    traced.clear()
    assert run_tuner("--dry-run") == 0
    assert run_tuner() == 0
    assert traced == [(128, 8), (128, 16)]
    said = capsys.readouterr().out
    assert said.count("(known; --anew measures it again)") == 2
    assert "would time Config(block=16)" in said
    assert "1 of 2 sets of sizes measured, 1 known before" in said
    assert [n for n, _ in measured(folder)] == [64, 128]

    traced.clear()
    assert run_tuner("--anew") == 0
    assert len(traced) == 4


def test_what_another_version_of_jax_measured_is_measured_again(
    folder: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(double)
    with monkeypatch.context() as other:
        other.setattr(jax, "__version__", "0.0.1")
        assert run_tuner() == 0
    assert run_tuner("--shapes", "N=128") == 0
    assert [winner.jax for winner in tuning.read(folder / "cpu.json", "cpu").winners] == ["0.0.1", jax.__version__]


@pytest.mark.parametrize("refused", [False, True], ids=["the rule's", "the first that works"])
def test_a_configuration_that_is_fast_and_wrong_does_not_win(
    folder: Path, kernel: Callable[..., None], capsys: pytest.CaptureFixture[str], refused: bool
) -> None:
    """All are judged by the configuration of the rule, or where that is refused by the first one that works."""

    def run(x: jax.Array, *, config: Any) -> jax.Array:
        if config.block == 32:
            return x * jnp.where(jnp.arange(x.shape[-1]) < 4, 0, 2)
        if refused and config.block == 8:
            raise ValueError("too small")
        return jax.lax.fori_loop(0, 300, lambda _, y: (y + 2 * x) / 2, x)  # slow, and 2 * x

    kernel(run)
    assert run_tuner("--shapes", "N=64") == 0
    said = capsys.readouterr().out
    judge = 16 if refused else 8
    differ = rf"left out     Config\(block=32\): its results differ by \de.\d\d from those of Config\(block={judge}\)"
    assert re.search(differ, said)
    assert ("refused     Config(block=8): too small" in said) == refused
    assert measured(folder)[0][1] != 32


def test_configurations_are_compiled_side_by_side_before_one_is_timed(
    folder: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, compiled = threading.Barrier(2, timeout=20), []

    def meet(lowered: jax.stages.Lowered) -> Any:
        both.wait()
        program = COMPILE(lowered)
        compiled.append(program)
        return program

    def timed(*_: Any) -> float:
        assert len(compiled) == 2
        return 1.0

    monkeypatch.setattr(contest, "THREADS", 2)
    monkeypatch.setattr(contest, "microseconds", timed)
    monkeypatch.setattr(jax.stages.Lowered, "compile", meet)
    kernel(double, blocks=(8, 16))
    assert run_tuner("--shapes", "N=64") == 0
    assert measured(folder) == [(64, 8)]


def test_what_is_compiled_is_said_before_and_while_it_takes_long(
    folder: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    named = threading.Event()

    def say(line: str) -> None:
        said.append(line.strip())
        if "still" in line:
            named.set()

    def wait(lowered: jax.stages.Lowered) -> Any:
        assert "compiling     Config(block=8)" in said
        assert "block=8" in (folder / "cpu.trying").read_text()
        assert named.wait(60)
        return COMPILE(lowered)

    monkeypatch.setattr(contest, "PATIENCE", 0.01)
    monkeypatch.setattr(jax.stages.Lowered, "compile", wait)
    monkeypatch.setattr(tune, "_say", say)
    kernel(double, blocks=(8,))
    assert run_tuner("--shapes", "N=64") == 0
    assert "still     compiling Config(block=8)" in said
    assert [file.name for file in folder.iterdir()] == ["cpu.json"]


@pytest.mark.parametrize("phase", ["compile", "run"])
def test_what_took_its_process_along_is_left_out_by_the_next(
    folder: Path, capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    crash = {
        "compile": "Lowered = jax.stages.Lowered; own = Lowered.compile\n"
        "def run(x, *, config): return x + 16 if config.block == 16 else x\n"
        "def dying(self): return os._exit(9) if '1.6' in self.as_text() else own(self)\n"
        "Lowered.compile = dying",
        "run": "def die(x): os._exit(9)\n"
        "def run(x, *, config): return jax.pure_callback(die, x, x) if config.block == 16 else x",
    }
    program = f"""
import dataclasses, os, sys, jax
from pallas_kernels import tune
from pallas_kernels.hadamard.xla_matmul import TUNABLE, Config
{crash[phase]}
blocks = [Config(block) for block in (64, 16)]
dataclasses.replace(TUNABLE, run=run, candidates=lambda dims: blocks)
sys.exit(tune.main(sys.argv[1:]))
"""
    argv = ["--impl", "xla_matmul", "--shapes", "N=64", "--seconds", "0.0001"]
    command, crashes, status = [sys.executable, "-c", program, *argv], 0, 9
    while status == 9 and crashes < 3:
        tuner = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False)
        status = tuner.returncode
        crashes += status == 9
    assert status == 0, tuner.stderr
    assert crashes in (1, 2)
    assert "left out     Config(block=16): a run that tried it hung or crashed; --anew tries it again" in tuner.stdout
    assert measured(folder) == [(64, 64)]
    line = f'jax {jax.__version__}: ["hadamard", "xla_matmul", {{"N": 64}}] Config(block=16)'
    assert (folder / "cpu.trying").read_text() == f"left out: {line}\n"
    assert run_here([*argv, "--anew"]) == 0
    assert "us  Config(block=16)" in capsys.readouterr().out
    assert not (folder / "cpu.trying").exists()


def run_here(argv: Sequence[str]) -> int:
    """Run the tuner where block 16 is a candidate that harms nobody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_TUNABLES", {})
        replace(xla_matmul.TUNABLE, candidates=lambda dims: [Config(64), Config(16)])
        return tune.main(argv)


def test_an_interrupt_blames_only_what_has_been_tried_for_long(tmp_path: Path) -> None:
    file = tmp_path / "cpu.trying"
    attempts = Attempts(file)
    with attempts.trying("slow"):
        time.sleep(0.2)
        with attempts.trying("just begun"):
            assert file.read_text().splitlines() == ["slow", "just begun"]
            attempts.forgive(0.1)
            assert file.read_text().splitlines() == ["slow"]
    assert not file.exists()


def test_one_attempt_that_never_ended_is_guilty_and_of_several_one_is_sought(tmp_path: Path) -> None:
    file = tmp_path / "cpu.trying"
    file.write_text("first\n")
    assert Attempts(file).guilty == {"first"}
    file.write_text("left out: first\nsecond\nthird\n")
    attempts = Attempts(file)
    assert (attempts.guilty, attempts.suspects) == ({"first"}, {"second", "third"})
    with attempts.trying("second"):
        assert Attempts(file).guilty == {"first", "second"}
    attempts = Attempts(file)
    assert (attempts.guilty, attempts.suspects) == ({"first"}, frozenset())
    with attempts.trying("first"):
        assert Attempts(file).guilty == {"first"}
    assert not file.exists()


def test_suspects_are_compiled_one_after_the_other(
    folder: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []

    def count(lowered: jax.stages.Lowered) -> Any:
        together.append(len((folder / "cpu.trying").read_text().splitlines()))
        time.sleep(0.2)
        return COMPILE(lowered)

    monkeypatch.setattr(contest, "THREADS", 3)
    monkeypatch.setattr(jax.stages.Lowered, "compile", count)
    kernel(double)
    names = [f'jax {jax.__version__}: ["hadamard", "xla_matmul", {{"N": 64}}] Config(block={n})' for n in (16, 32)]
    (folder / "cpu.trying").write_text("".join(f"{name}\n" for name in names))
    assert run_tuner("--shapes", "N=64") == 0
    assert together == [1, 1, 1]


def test_an_interrupt_does_not_wait_for_what_has_not_begun(
    folder: Path, kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled when the signal comes is compiled to its end, and is not taken for what hangs."""
    begun, forgiven = [], []

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def late(lowered: jax.stages.Lowered) -> Any:
        begun.append(lowered)
        end = time.monotonic() + 20
        while (folder / "cpu.trying").exists() and time.monotonic() < end:
            time.sleep(0.01)
        forgiven.append(not (folder / "cpu.trying").exists())
        return COMPILE(lowered)

    monkeypatch.setattr(contest, "THREADS", 1)
    monkeypatch.setattr(contest, "wait", interrupt)
    monkeypatch.setattr(jax.stages.Lowered, "compile", late)
    kernel(double)
    assert run_tuner("--shapes", "N=64") == 130
    assert len(begun) <= 1
    assert forgiven == [True] * len(begun)
    assert not list(folder.iterdir())


HEADS = {"Hk": 2, "Hv": 4, "Dk": 16, "Dv": 16}


@pytest.mark.parametrize(
    "made",
    [
        lambda: hadamard(SMALL),
        lambda: convolution({"B": 1, "T": 4, "C": 64, "W": 4}),
        lambda: full_cache({"S": 64, "H": 4, "G": 2, "N": 32, "k_type": "bf16", "v_type": "q8_0"}),
        lambda: (product({"N": 64, "K": 256, "format": "Q8_0"})[0],),
        lambda: product({"N": 64, "K": 256, "format": "Q4_K"})[1].parts["plane0"],
        lambda: example_slots(HEADS),
        lambda: example_records(HEADS),
    ],
    ids=["hadamard", "causal_conv1d", "cache_attention", "rows", "matrix", "gated_delta", "commit"],
)
def test_examples_are_random(made: Callable[[], Any]) -> None:
    """Of constant numbers a kernel that mixes up rows or blocks would make the same results."""
    large = [np.asarray(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(made()) if leaf.size >= 16]
    assert large
    for numbers in large:
        rows = numbers.reshape(-1, numbers.shape[-1])
        for vectors in (rows, rows.T):
            assert len(np.unique(vectors, axis=0)) > len(vectors) / 2
