"""The benchmark of all kernels: nothing is left out, and what is wrong or refused is to be seen."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from pallas_kernels import native, tuning
from pallas_kernels.cases import CASES
from pallas_kernels.choices import Choice
from pallas_kernels.measuring.timing import Effort
from pallas_kernels.table import TABLE

RATE = 1e9
MISSING = () if native.available() else ("cpu_native",)
BY_XLA = {"xla_floats", "xla_tiles", "xla_decoded"}
LAYOUT = "panels16" if native.available() else "blocks"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import kernels

    yield kernels
    for name in ("kernels", "kernel_cases", "kernel_figures", "kernels_peers", "random_model", "machine"):
        sys.modules.pop(name, None)


@pytest.fixture
def effort() -> object:
    return Effort(copies=2, cache_bytes=1 << 30, seconds=0, runs=1)


def figures(kernels: ModuleType, file: Path | None = None) -> Any:
    return kernels.Figures.at(file, {"machine": "m", "bytes_per_second": RATE, "small": True})


def test_every_operation_has_a_case(kernels: ModuleType) -> None:
    small = list(kernels.cases(small=True))
    assert {case.operation.name for case in small} == set(TABLE)
    commit = next(case for case in small if case.operation.name == "gated_delta.commit")
    state, records = 2 * 48 * 128 * 128 * 4, 2 * 4 * (16 * 128 + 48 * 128 + 48) * 4
    assert commit.num_bytes == 2 * state + records + 2 * 4  # and how many tokens stay


DELTAS = {"B": 1, "T": 2, "Hk": 1, "Hv": 2, "Dk": 16, "Dv": 16}


@pytest.mark.parametrize(
    ("operation", "dims", "refused"),
    [
        *((f"gated_delta.{name}", {**DELTAS, "M": 2}, {}) for name in ("prefill", "verify", "commit")),
        ("gated_delta.verify_snapshots", {**DELTAS, "M": 2}, {}),
        ("causal_conv1d", {"B": 2, "T": 3, "C": 8, "W": 4}, {}),
        ("hadamard", {"rows": 4, "N": 8}, {}),
        (
            "matmul.packed",
            {"M": 2, "N": 64, "K": 96, "format": "Q8_0", "layout": LAYOUT},
            {"xla_decoded": "reads the layout 'planes'"},
        ),
        ("matmul.float", {"M": 2, "N": 64, "K": 96, "dtype": "float32"}, {}),
        ("matmul.experts", {"M": 2, "k": 2, "E": 4, "F": 32, "D": 64}, {}),
        (
            "cache_attention",
            {"T": 2, "S": 16, "H": 4, "G": 2, "N": 16, "k_type": "q8_0", "v_type": "q8_0"},
            {"xla_floats": "q8_0 is no float type"},
        ),
    ],
)
def test_implementations_agree_and_are_timed(
    kernels: ModuleType, effort: object, operation: str, dims: dict, refused: dict[str, str]
) -> None:
    case = CASES[operation](dims)
    results = {
        result.impl: result
        for result in kernels.measure(case, kernels.compiled(case, effort), figures(kernels), effort)
    }
    here = {impl for impl in TABLE[operation] if impl.startswith(("xla_", "cpu_"))}
    assert set(results) == here
    for impl, result in results.items():
        if impl in MISSING:
            assert result.refused is not None
            continue
        if impl in refused:
            assert refused[impl] in result.refused
            assert result.seconds is None
            continue
        assert result.refused is None
        assert result.share_of_limit == pytest.approx(case.num_bytes / result.seconds / RATE)
        assert result.error < (1e-2 if impl == "xla_decoded" else 1e-3), "the former rounds to bfloat16"
    assert any(result.times_as_fast_as_xla == 1 for result in results.values())


def test_wrong_results_and_failures_are_shown(
    kernels: ModuleType, effort: object, capsys: pytest.CaptureFixture[str]
) -> None:
    right = CASES["matmul.packed"]({"M": 2, "N": 64, "K": 96, "format": "Q8_0", "layout": LAYOUT})

    def call(impl: str, given: object) -> object:
        if impl == "cpu_native":
            raise RuntimeError("ptxas fatal: too many registers\nand more")
        return right.call(impl, given)

    case = replace(right, call=call)
    results = list(kernels.measure(case, kernels.compiled(case, effort), figures(kernels), effort))
    refused = {each.impl: each.refused for each in results}
    assert refused["xla_dequant"] is None
    assert refused["cpu_native"] == "RuntimeError: ptxas fatal: too many registers"
    kernels.print_table(results, RATE)
    assert "refused: matmul.packed cpu_native, M=2" in capsys.readouterr().out


def test_figures_are_kept_after_each_call_and_the_next_run_goes_on_after_a_failure(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernels.json"
    given, broken = CASES["hadamard"]({"rows": 4, "N": 8}), CASES["rms_norm"]({"rows": 4, "D": 8})

    def fail(x: Any) -> Any:
        raise RuntimeError("an illegal address")

    def call(impl: str, given: Any) -> Any:
        outcome = broken.call("xla_reduce", given)
        if impl == "xla_reduce":
            return outcome
        shape = jax.ShapeDtypeStruct(outcome.results.shape, outcome.results.dtype)
        return outcome._replace(results=jax.pure_callback(fail, shape, outcome.results))

    some = [given, replace(broken, call=call)]
    monkeypatch.setattr(kernels, "cases", lambda *, small: some)
    monkeypatch.setattr(kernels, "SMALL", Effort(1, 1, 0, 1))
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--small", "--json", str(out)])
    assert kernels.main() == kernels.GO_ON
    assert [each["operation"] for each in json.loads(out.read_text())["results"]] == ["hadamard"]
    assert kernels.main() == 0
    said = capsys.readouterr().out
    assert "1 of 2 calls are in" in said
    refused = next(each for each in json.loads(out.read_text())["results"] if each["impl"] == "cpu_native")
    assert "CpuCallback error" in refused["refused"]


def test_what_ended_the_process_is_left_out_the_next_time(kernels: ModuleType, effort: object, tmp_path: Path) -> None:
    case, out = CASES["matmul.float"]({"M": 2, "N": 64, "K": 96, "dtype": "float32"}), tmp_path / "kernels.json"
    figures(kernels, out).trying(case, "xla_dot")  # and nothing more is heard
    found = figures(kernels, out)
    results = {each.impl: each for each in kernels.measure(case, kernels.compiled(case, effort), found, effort)}
    assert results["xla_dot"].refused == "ended the process that ran it"
    assert results["xla_few_rows"].seconds > 0
    assert not figures(kernels, tmp_path / "another.json").fatal


def test_an_interrupt_blames_no_kernel(kernels: ModuleType, effort: object, tmp_path: Path) -> None:
    """Such as that of a slice whose time is over."""

    def interrupted(material: object) -> float:
        raise KeyboardInterrupt

    case, out = CASES["matmul.float"]({"M": 2, "N": 64, "K": 96, "dtype": "float32"}), tmp_path / "kernels.json"
    ready = [replace(each, run=interrupted) for each in kernels.compiled(case, effort) if each.run]
    with pytest.raises(KeyboardInterrupt):
        list(kernels.measure(case, ready, figures(kernels, out), effort))
    assert out.exists()
    assert not figures(kernels, out).fatal


def test_wrong_results_are_no_figures(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    right = CASES["matmul.float"]({"M": 2, "N": 64, "K": 96, "dtype": "float32"})

    def call(impl: str, given: Any) -> Any:
        outcome = right.call(impl, given)
        return outcome._replace(results=outcome.results * (float("nan") if impl == "xla_dot" else 1))

    monkeypatch.setattr(kernels, "cases", lambda *, small: [replace(right, call=call)])
    monkeypatch.setattr(kernels, "SMALL", Effort(1, 1, 0, 1))
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--small", "--json", str(tmp_path / "kernels.json")])
    assert kernels.main() == 1
    assert re.search(r"refused: matmul.float xla_dot, .* results differ by inf, where 1e-02", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("platform", "here"),
    [
        ("cpu", {"cpu_native", *BY_XLA}),
        ("gpu", {"pallas_gpu", "pallas_gpu_splits", "pallas_gpu_prefill", "triton", "triton_prefill", *BY_XLA}),
        ("tpu", {"pallas_tpu", "pallas_tpu_prefill", *BY_XLA}),
    ],
)
def test_interpreters_and_references_are_left_out(kernels: ModuleType, platform: str, here: set[str]) -> None:
    case = CASES["cache_attention"](
        {"T": 2, "S": 16, "H": 4, "G": 2, "N": 16, "k_type": "f32", "v_type": "f32"},
    )
    assert {each.name for each in kernels.tried(case, platform)} == here


def test_the_figures_as_json(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    monkeypatch.setattr("kernels.SMALL", Effort(1, 1, 0, 1))
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--operation", "hadamard", "--json", str(out)])
    kernels.main()
    document = json.loads(out.read_text())
    assert document["bytes_per_second"] > 0
    assert [(each["operation"], each["impl"]) for each in document["results"]] == [("hadamard", "xla_matmul")]


def test_the_fastest_are_written_for_all_users_of_such_a_device(
    kernels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside what is there; measured in a process of its own."""
    monkeypatch.setenv(tuning.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
    path, device = tuning.file_of(tuning.device_kind()), tuning.device_kind()
    other = Choice("hadamard", {"N": 8}, {"N": 8}, ("xla_matmul",), {"xla_matmul": 1.0}, {})
    tuning.write(path, tuning.Measurements(device, (), {other.key: other}))
    calls = [("matmul.float", {"M": 2, "N": 64, "K": 64, "dtype": "float32"})]
    kernels._prefer(calls)
    written = tuning.read(path, device).choices
    assert [choice.operation for choice in written.values()] == ["hadamard", "matmul.float"]
    assert set(written[list(written)[1]].order) == {"xla_few_rows", "xla_dot"}
    assert re.search(r"matmul.float M=2 N=64 .*: xla_\w+, measured on cpu: .* us against", capsys.readouterr().out)
    tuning.write(path, tuning.Measurements(device))
    kernels._prefer(calls)
    assert "matmul.float" not in capsys.readouterr().out, "it goes on where it was interrupted"
    assert [choice.operation for choice in tuning.read(path, device).choices.values()] == ["matmul.float"]
