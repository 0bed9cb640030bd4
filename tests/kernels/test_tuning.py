"""Block sizes are data: given, measured, or by a rule; a file of measurements is whole, or an error that says where."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import needs_jax_triton

from pallas_kernels import explain, gated_delta, tune, tuning, using
from pallas_kernels.hadamard import walsh_hadamard, xla_matmul

SIZES = {"N": 64}
SMALL = {"T": 4, "Hk": 1, "Hv": 1, "Dk": 8, "Dv": 40}
ENTRY = {
    "operation": "hadamard", "impl": "xla_matmul", "dims": SIZES, "config": {"block": 16}, "microseconds": 2.5,
    "jax": "0.0.1",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of winners of this test's own."""
    monkeypatch.setenv(tuning.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def choice(operation: str, *order: str, **changes: object) -> dict[str, object]:
    """What a file holds of a choice at `SMALL`."""
    times = {impl: 1.5 * number for number, impl in enumerate(order, 1)}
    group = {axis: size for axis, size in SMALL.items() if axis != "T"} | {"many": False}
    names = {"operation": operation, "group": group, "measured": SMALL, "order": order, "microseconds": times}
    return {**names, "left_out": {}, **changes}


def write(folder: Path, *entries: object, device: object = "cpu", choices: object = ()) -> Path:
    path = folder / "cpu.json"
    path.write_text(json.dumps({"device": device, "winners": entries, "choices": choices}))
    tuning._measured.cache_clear()
    return path


def test_the_rule_serves_what_was_not_measured(folder: Path) -> None:
    assert tuning.config_for(xla_matmul.TUNABLE, SIZES) == xla_matmul.Config(64)


def test_a_measured_winner_goes_before_the_rule_for_its_very_sizes(folder: Path) -> None:
    write(folder, ENTRY)
    assert tuning.config_for(xla_matmul.TUNABLE, SIZES) == xla_matmul.Config(16)
    assert tuning.config_for(xla_matmul.TUNABLE, {"N": 128}) == xla_matmul.Config(128)


def test_a_given_configuration_goes_before_a_winner(folder: Path) -> None:
    write(folder, ENTRY)
    assert tuning.config_for(xla_matmul.TUNABLE, SIZES, xla_matmul.Config(8)) == xla_matmul.Config(8)
    with pytest.raises(ValueError, match=r"hadamard: config of xla_matmul is 8; accepted: .*xla_matmul.Config"):
        tuning.config_for(xla_matmul.TUNABLE, SIZES, 8)


def test_a_winner_is_what_the_kernel_runs_with(folder: Path) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64)), jnp.float32)

    def inner_factor() -> str:
        return str(jax.make_jaxpr(lambda x: walsh_hadamard(x, impl="xla_matmul"))(x))

    assert "f32[16,16]" not in inner_factor()
    write(folder, ENTRY)
    assert "f32[16,16]" in inner_factor()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"operation": "hadamart"}, r"winners\[1\] is of 'hadamart', 'xla_matmul'.*known: .*hadamard xla_matmul"),
        ({"operation": ["hadamard"]}, r"winners\[1\] is of \['hadamard'\], 'xla_matmul'.*known: .*hadamard xla_matmul"),
        ({"dims": {"N": "64"}}, r"winners\[1\]\.dims\.N is '64'; accepted: int"),
        ({"dims": {"M": 1}}, r"winners\[1\]\.dims has \['M'\]; accepted: an object with N"),
        ({"config": {"blok": 16}}, r"winners\[1\]\.config has \['blok'\]; accepted: an object with block"),
        ({"config": {"block": "16"}}, r"winners\[1\]\.config\.block is '16'; accepted: int"),
        ({"config": {"block": 17}}, r"winners\[1\]\.config: block is 17; accepted: powers of two"),
        ({"microseconds": 0}, r"winners\[1\]\.microseconds is 0; accepted: a number above 0"),
        ({"note": "fast"}, r"winners\[1\] has .*'note'.*accepted: an object with config, dims"),
    ],
)
def test_a_broken_entry_names_file_and_key(folder: Path, changed: dict[str, object], message: str) -> None:
    path = write(folder, ENTRY, {**ENTRY, **changed})
    with pytest.raises(ValueError, match=rf"{path}: {message}"):
        tuning.config_for(xla_matmul.TUNABLE, SIZES)


def test_a_broken_file_is_named(folder: Path) -> None:
    path = write(folder, device="TPU v5 lite")
    with pytest.raises(ValueError, match=rf"{path}: device is 'TPU v5 lite'"):
        tuning.config_for(xla_matmul.TUNABLE, SIZES)
    path.write_text('{"device": "cpu", "win')
    with pytest.raises(ValueError, match=rf"{path}: not JSON"):
        tuning.config_for(xla_matmul.TUNABLE, SIZES)
    path.write_text("[]")
    with pytest.raises(
        ValueError, match=rf"{path}: the file has \[\]; accepted: an object with choices, device, winners"
    ):
        tuning.config_for(xla_matmul.TUNABLE, SIZES)


def test_what_was_measured_fastest_here_is_chosen_where_it_fits(folder: Path) -> None:
    operation = "gated_delta.prefill"
    before = explain(operation, **SMALL)
    write(folder, choices=[choice(operation, "xla_recurrent", "xla_chunked", left_out={"cpu_native": "crashed"})])
    said = explain(operation, **SMALL)
    assert re.search(r"xla_recurrent +chosen \(measured on cpu: 1.50 us against 3.00 us of xla_chunked\)", said)
    assert re.search(r"xla_chunked +fits \(3.00 us\)", said)
    assert re.search(r"cpu_native +left out: crashed", said)
    assert "chosen (measured" in explain(operation, **{**SMALL, "T": 16})
    for others in ({**SMALL, "T": 17}, {**SMALL, "Dv": 48}):
        assert "measured" not in explain(operation, **others)
    assert "measured" not in explain(operation, platform="tpu", **SMALL)
    with using(measured=False):
        assert explain(operation, **SMALL) == before
    with using("xla"):
        assert re.search(r"xla_chunked +chosen \(using", explain(operation, **SMALL))
    with using(f"{operation}=xla_chunked"):
        assert re.search(r"xla_chunked +chosen \(using", explain(operation, **SMALL))
    q, v, scalar = jnp.ones((1, 4, 1, 8)), jnp.ones((1, 4, 1, 40)), jnp.ones((1, 4, 1))

    def text(impl: str | None) -> str:
        run = partial(gated_delta.prefill, impl=impl)
        return jax.jit(run).lower(q, q, v, -scalar, scalar, jnp.ones((1, 1, 8, 40))).as_text()

    assert text(None) == text("xla_recurrent") != text("xla_chunked")
    write(folder, choices=[choice(operation, "pallas_gpu")])  # does not take this Dv
    said = explain(operation, **SMALL)
    assert re.search(r"pallas_gpu +passed over: Dv=40", said)
    assert re.search(r" chosen$", said, re.MULTILINE)
    write(folder)
    assert explain(operation, **SMALL) == before


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"hadamard": ["xla_matmul"]}, r"choices is \{.*; accepted: a list"),
        ([{"operation": "hadamard"}], r"choices\[0\] has \['operation'\]; accepted: an object with group, left_out"),
        ([choice("hadamart", "xla_matmul")], r"choices name the operation 'hadamart'; known: .*hadamard"),
        ([choice("hadamard", "xla_matmull")], r"choices of hadamard name 'xla_matmull'; known: .*xla_matmul"),
        ([choice("hadamard", order="xla_matmul")], r"choices\[0\].order is 'xla_matmul'; accepted: a list of names"),
        ([choice("hadamard", order=["xla_matmul"])], r"order is \['xla_matmul'\], of which not all are in microsec"),
        ([choice("hadamard", "xla_matmul", microseconds={"xla_matmul": 0})], r"microseconds is .*numbers above 0"),
        ([choice("hadamard", left_out={"reference": 1})], r"reasons of left_out are texts"),
    ],
)
def test_a_broken_choice_names_file_and_key(folder: Path, choices: object, message: str) -> None:
    path = write(folder, choices=choices)
    with pytest.raises(ValueError, match=rf"{path}: .*{message}"):
        walsh_hadamard(jnp.ones((1, 8)))


def test_files_are_named_after_the_device() -> None:
    assert tuning.file_of("TPU v5 lite").name == "tpu_v5_lite.json"
    assert tuning.file_of("NVIDIA H200").name == "nvidia_h200.json"


def test_files_of_the_package_are_valid() -> None:
    for path in tuning.PACKAGE_FOLDER.glob("*.json"):
        assert tuning.read(path, json.loads(path.read_text())["device"])


def test_what_is_registered_can_be_tuned() -> None:
    """Rules and candidates give hashable configurations that a file can hold, for the sizes of real models."""
    for tunable in tuning.tunables().values():
        assert is_dataclass(tunable.Config)
        assert tunable.platforms
        assert tunable.shapes
        for dims in tunable.shapes:
            assert dims.keys() == tunable.shapes[0].keys()
            configs = [tunable.heuristic(dims), *tunable.candidates(dims)]
            assert len(set(configs)) > 1
            for config in configs:
                assert isinstance(config, tunable.Config)
                assert tunable.Config(**json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("in_triton", [False, pytest.param(True, marks=needs_jax_triton)])
def test_examples_are_what_kernels_run_on(in_triton: bool) -> None:
    """On a device that is not at hand nothing would tell before somebody tunes there."""
    for tunable in tuning.tunables().values():
        if tunable.impl.startswith("triton") != in_triton:
            continue
        dims = tunable.shapes[0]
        example = jax.eval_shape(partial(tunable.example, dims))
        out = jax.eval_shape(partial(tunable.run, config=tunable.heuristic(dims)), *example)
        assert jax.tree.leaves(out), tunable.impl


def test_tuning_keeps_the_fastest_and_other_entries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {**ENTRY, "dims": {"N": 32}}
    path = write(folder, other, ENTRY, choices=[choice("rms_norm", "xla_reduce")])
    status = tune.main(["--operation", "hadamard", "--impl", "xla_matmul", "--shapes", "N=64", "--seconds", "0.001"])
    assert status == 0
    out = capsys.readouterr().out
    assert "[1/1] hadamard xla_matmul N=64" in out
    assert "Config(block=64)  (the rule)" in out
    kept, new = tuning.read(path, "cpu").winners
    assert dict(kept.dims) == {"N": 32}
    assert new.config in xla_matmul.candidates(SIZES)
    assert tuning.config_for(xla_matmul.TUNABLE, SIZES) == new.config
    assert [each.order for each in tuning.read(path, "cpu").choices.values()] == [("xla_reduce",)]
    assert [file.name for file in folder.iterdir()] == ["cpu.json"]


def test_a_dry_run_measures_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["--dry-run", "--impl", "xla_matmul"]) == 0
    assert "would time Config(block=32)" in capsys.readouterr().out
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--operation", "hadamart"], r"'hadamart' has nothing to tune; accepted: .*hadamard"),
        (["--impl", "cuda"], r"'cuda' has nothing to tune; accepted: .*xla_matmul"),
        (["--shapes", "N"], r"--shapes N: 'N' is not of the form AXIS=SIZE"),
        (["--shapes", "N=-64"], r"--shapes N=-64: N is '-64'; accepted: an integer, at least 1"),
        (["--shapes", "N=0"], r"--shapes N=0: N is 0; accepted: an integer, at least 1"),
        (["--shapes", "Q=3"], r"--shapes Q=3: no kernel has these axes; accepted: .*hadamard xla_matmul N"),
    ],
)
def test_a_bad_option_is_named(folder: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(argv) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_the_time_to_spend_is_above_zero(folder: Path, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tune.main(["--seconds", seconds])
    assert ended.value.code == 2
    assert re.search(r"--seconds is .*; accepted: a number above 0", capsys.readouterr().err)


def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv(tuning.FOLDER_VARIABLE, str(folder / "file"))
    assert tune.main(["--impl", "xla_matmul", "--shapes", "N=64"]) == 2
    said = capsys.readouterr()
    assert str(folder / "file") in said.err
    assert "[1/1]" not in said.out


def test_ctrl_c_leaves_the_file_whole(folder: Path) -> None:
    """The first result is kept, the second is under way when the signal comes."""
    # A process that was started in the background ignores SIGINT, and so would its children.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from pallas_kernels.tune import main; sys.exit(main(sys.argv[1:]))"
    )
    shapes = ["--shapes", "N=32", "--shapes", "N=64"]
    command = [sys.executable, "-c", program, "--impl", "xla_matmul", "--seconds", "0.01", *shapes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as tuner:
        said = ""
        for line in tuner.stdout:
            said += line
            if line.startswith("[2/2]"):
                tuner.send_signal(signal.SIGINT)
        assert tuner.wait() in (130, 0)
    assert [file.name for file in folder.iterdir()] == ["cpu.json"]
    winners = tuning.read(folder / "cpu.json", "cpu").winners
    assert dict(winners[0].dims) == {"N": 32}
    if tuner.returncode == 130:
        assert f"interrupted: {len(winners)} of 2" in said
