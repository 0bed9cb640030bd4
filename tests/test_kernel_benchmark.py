"""The benchmark of all kernels: nothing is left out, and what is wrong or refused is to be seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import native, tuning
from pallas_kernels.table import TABLE

RATE = 1e9
MISSING = () if native.available() else ("cpu_native",)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import kernels

    yield kernels
    for name in ("kernels", "kernel_cases", "kernels_peers", "random_model", "machine"):
        sys.modules.pop(name, None)


@pytest.fixture
def effort(kernels: ModuleType) -> object:
    return kernels.Effort(copies=2, cache_bytes=1 << 30, seconds=0, runs=1)


def test_every_operation_has_a_case(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_cases._normal", lambda seed, *shape, dtype=jnp.float32: jnp.zeros(shape, dtype))
    small = list(kernels.cases(small=True))
    assert {case.operation for case in small} == set(TABLE)
    commit = next(case for case in small if case.operation == "gated_delta.commit")
    state, records = 2 * 48 * 128 * 128 * 4, 2 * 4 * (16 * 128 + 48 * 128 + 48) * 4
    assert commit.num_bytes == 2 * state + records


@pytest.mark.parametrize(
    ("name", "arguments", "refused"),
    [
        ("_gated_delta_prefill", (3,), {}),
        ("_convolution", (2, 3, 8), {}),
        ("_hadamard", (4, 8), {}),
        ("_products", ("Q8_0", 2, 64, 96), {}),
        ("_float_products", (2, 64, 96), {}),
        ("_experts", (2, 4, 2, 64, 32), {}),
        ("_attention", ("q8_0", 2, 16), {"xla_floats": "q8_0 is no float type"}),
    ],
)
def test_implementations_agree_and_are_timed(
    kernels: ModuleType, effort: object, name: str, arguments: tuple, refused: dict[str, str]
) -> None:
    import kernel_cases

    case = getattr(kernel_cases, name)(*arguments)
    results = {result.impl: result for result in kernels.measure(case, RATE, effort)}
    here = {impl for impl in TABLE[case.operation] if impl.startswith(("xla_", "cpu_"))}
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
        assert result.error < 1e-4
    assert any(result.times_as_fast_as_xla == 1 for result in results.values())


def test_rounds_of_the_gated_delta_rule(kernels: ModuleType, effort: object) -> None:
    import kernel_cases

    for case in kernel_cases._gated_delta_rounds(1, 2):
        results = [result for result in kernels.measure(case, RATE, effort) if result.impl not in MISSING]
        assert results[0].impl.startswith("xla_")
        assert all(result.refused is None and result.error < 1e-5 for result in results)


def test_wrong_results_and_failures_are_shown(
    kernels: ModuleType, effort: object, capsys: pytest.CaptureFixture[str]
) -> None:
    import kernel_cases

    right = kernel_cases._products("Q8_0", 2, 64, 96)

    def step(impl: str, *arguments: object) -> object:
        if impl == "cpu_native":
            raise RuntimeError("ptxas fatal: too many registers\nand more")
        return right.step(impl, *arguments)

    results = list(kernels.measure(replace(right, step=step), RATE, effort))
    assert [(each.impl, each.refused) for each in results] == [
        ("xla_dequant", None),
        ("cpu_native", "RuntimeError: ptxas fatal: too many registers"),
    ]
    kernels.print_table(results, RATE)
    assert "refused: matmul.packed cpu_native, Q8_0 M=2" in capsys.readouterr().out
    ones = [np.ones(4), np.ones(4)]
    assert kernels.largest_error([np.ones(4), np.full(4, 1.5)], ones) == 0.5
    assert np.isnan(kernels.largest_error([np.full(4, np.nan), np.ones(4)], ones))


@pytest.mark.parametrize(
    ("platform", "here"),
    [
        ("cpu", {"cpu_native", "xla_floats", "xla_tiles"}),
        ("gpu", {"pallas_gpu", "pallas_gpu_prefill", "triton", "xla_floats", "xla_tiles"}),
        ("tpu", {"pallas_tpu", "pallas_tpu_prefill", "xla_floats", "xla_tiles"}),
    ],
)
def test_interpreters_and_references_are_left_out(kernels: ModuleType, platform: str, here: set[str]) -> None:
    assert {name for name in TABLE["cache_attention"] if kernels.runs_here(name, platform)} == here


def test_the_figures_as_json(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    monkeypatch.setattr("kernels.SMALL", kernels.Effort(1, 1, 0, 1))
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--operation", "hadamard", "--json", str(out)])
    kernels.main()
    document = json.loads(out.read_text())
    assert document["bytes_per_second"] > 0
    assert [(each["operation"], each["impl"]) for each in document["results"]] == [("hadamard", "xla_matmul")]


def test_what_beats_xla_wherever_it_serves_is_preferred(
    kernels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(
        operation: str,
        impl: str,
        gain: float | None,
        error: float | None = 1e-6,
        refused: str | None = None,
        sizes: str = "",
    ):
        return kernels.Result(operation, sizes, impl, 1, 1.0, 0.5, gain, error, refused)

    results = [
        result("hadamard", "pallas_gpu", 2.0),
        result("hadamard", "pallas_gpu", 3.0),
        result("hadamard", "xla_matmul", 1.0, 0.0),
        result("rms_norm", "cpu_native", 2.0),
        result("rms_norm", "cpu_native", 0.9),  # slower somewhere
        result("causal_conv1d", "pallas_gpu", 5.0, float("nan")),  # wrong
        result("gated_delta.verify", "pallas_gpu", 2.0),
        result("gated_delta.verify", "triton", 3.0),
        result("gated_delta.verify", "triton", None, None, "ValueError: impl='triton' does not fit: Dk=24"),
        result("gated_delta.commit", "pallas_gpu", 2.0),
        result("gated_delta.commit", "pallas_gpu", None, None, "XlaRuntimeError: RESOURCE_EXHAUSTED"),  # would break
        result("cache_attention", "torch_sdpa", 9.0, None),  # of others
        result("cache_attention", "pallas_gpu", 2.0, sizes="T=4"),
        result(
            "cache_attention", "pallas_gpu", None, None, "ValueError: impl='pallas_gpu' does not fit: T=512", "T=512"
        ),
        result("cache_attention", "pallas_gpu_prefill", 1.5, sizes="T=512"),
        result("cache_attention", "pallas_gpu_prefill", 1.2, sizes="T=4"),
        result("cache_attention", "triton", 1.9, sizes="T=4"),  # serves nothing that those before do not
    ]
    preferred = {
        "hadamard": ["pallas_gpu"],
        "gated_delta.verify": ["triton"],
        "cache_attention": ["pallas_gpu", "pallas_gpu_prefill"],
    }
    assert kernels.preferences(results) == preferred

    monkeypatch.setenv(tuning.FOLDER_VARIABLE, str(tmp_path))
    path, device = tuning.file_of(tuning.device_kind()), tuning.device_kind()
    tuning.write(path, tuning.Measurements(device, (), {"rms_norm": ["cpu_native"], "matmul.packed": ["pallas_gpu"]}))
    kernels._prefer(results)
    assert tuning.read(path, device).preferred == {"matmul.packed": ["pallas_gpu"], **preferred}
    assert "rms_norm: nothing beats XLA at all sizes" in capsys.readouterr().out
