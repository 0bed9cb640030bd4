"""Commands on a mesh say what they say on one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specjax.cli.main import main

pytestmark = pytest.mark.mesh
MESH = ("--mesh", "1x2")


def test_generate_measures_and_compares_on_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "--max-tokens", "24", "--json", "--compare"]
    said = []
    for mesh in ((), MESH):
        assert main([*arguments, *mesh]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[1]["tokens"] == said[0]["tokens"]
    assert said[1]["timings"]["draft_per_round"] > 0, "the halves of a round are timed there too"


@pytest.mark.slow
def test_bench_and_plan_run_on_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--draft", "1", "--max-tokens", "16", *MESH]) == 0
    assert main(["plan", "--batch", "1", "--context", "64", "--draft", "1", *MESH]) == 0
    assert "K" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "diverge", "imatrix"])
def test_commands_that_do_not_run_there_have_no_such_option(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {"imatrix": ["--text", str(tmp_path / "t"), "--out", str(tmp_path / "o")]}
    assert main([command, *needed.get(command, []), *MESH]) == 2
    assert "unrecognized arguments: --mesh" in capsys.readouterr().err
