"""The verdicts of the benchmarks, and that they run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specjax.generation import GenerateOptions

LOGITS = np.array([4, 4 - 1e-5, 2, 0, -1], np.float32)
END = 3


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.fixture
def model() -> Any:
    weight = {"target": {"embed": {"weight": np.zeros(1, np.float32)}}}
    tokenizer = SimpleNamespace(eos_ids={END})
    return SimpleNamespace(next_logits=lambda prefix, kv_types: LOGITS, params=weight, tokenizer=tokenizer)


def generated(*tokens: int) -> Any:
    return SimpleNamespace(prompt_tokens=[1], tokens=list(tokens))


@pytest.mark.parametrize(
    ("mine", "theirs", "at", "ended", "margin"),
    [
        ([0, 1, 2], [0, 1, 2], None, False, None),
        ([0, 1, 2], [0, 1], 2, False, None),
        ([0, 1, 2], [], 0, False, None),
        ([0, 1], [0, 1, 2], 2, False, None),
        ([0, END, 2], [0], 1, True, None),
        ([0, END, 2], [0, 2, 2], 1, True, 2.0),
        ([0, 1, 2], [0, 2, 2], 1, False, 2.0),
        ([0, 0, 2], [0, 1, 2], 1, False, 1e-5),
    ],
)
def test_an_answer_of_llama_cpp_that_is_short_or_different_is_not_equal(
    benchmark: Any, model: Any, mine: list[int], theirs: list[int], at: int | None, ended: bool, margin: float | None
) -> None:
    result = benchmark("llama_cpp").compared(model, GenerateOptions(), generated(*mine), theirs)
    assert (result["diverges_at"], result["ended"]) == (at, ended)
    assert result["margin"] == (None if margin is None else pytest.approx(margin, rel=0.1))


def test_other_tokens_than_those_of_plain_decoding_are_recorded(benchmark: Any, model: Any) -> None:
    plain = [generated(0, 1, 2), generated(0, 1, 2), generated(2, 0, 0)]
    results = [generated(0, 1, 2), generated(0, 2, 2), generated(2, 1, 0)]
    found = benchmark("decode").divergences(model, GenerateOptions(), results, plain)
    assert [(each["prompt"], each["position"], each["near_tie"]) for each in found] == [(1, 1, False), (2, 1, True)]


def test_the_few_row_benchmark_prints_fractions_of_a_rate(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["few_row_matmul.py", "--outputs", "64", "--inputs", "32", "--repetitions", "1"])
    benchmark("few_row_matmul").main()
    _, limit, _, *rows = capsys.readouterr().out.splitlines()
    assert "GB/s" in limit
    assert [row.split()[0] for row in rows] == ["1", "2", "4", "6", "8", "16"]
    assert all(float(fraction) >= 0 for row in rows for fraction in row.split()[1:])
