"""Commands on a mesh say what they say on one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_models import write

from checkpoints.quantization import read_imatrix
from specjax.cli.main import main

pytestmark = pytest.mark.mesh
MESH = ("--mesh", "1x2")


def test_generate_measures_and_compares_on_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", str(write(tmp_path, "hybrid", "F32")), "--tokens", "7,8,9", "--ignore-eos"]
    said = []
    for options in (("--quiet",), ("--compare", *MESH)):
        assert main(["generate", *model, "--max-tokens", "24", "--json", *options]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[1]["tokens"] == said[0]["tokens"]
    assert said[1]["timings"]["draft_per_round"] > 0, "the halves of a round are timed there too"


@pytest.mark.slow
def test_bench_and_plan_run_on_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--draft", "1", "--max-tokens", "16", *MESH]) == 0
    assert main(["plan", "--batch", "1", "2", "--context", "64", "--draft", "1", "--mesh", "2x2"]) == 0
    assert "K" in capsys.readouterr().out


@pytest.mark.slow
def test_commands_that_look_inside_run_on_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "imatrix.gguf"
    text.write_text("def add(a, b):\n    return a + b\n" * 8)
    assert main(["imatrix", "--text", str(text), "--out", str(out), "--ctx", "64", "--chunks", "1", *MESH]) == 0
    assert read_imatrix(out).chunk_count == 1
    assert main(["diverge", "--prompt", "def add(", "--max-tokens", "8", "--no-states", *MESH]) == 0
    assert main(["check", "--prompt", "def add(", "--samples", "16", "--max-tokens", "8", "--draft", "1", *MESH]) == 0
    assert "verdict: equal" in capsys.readouterr().out
