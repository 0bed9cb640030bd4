"""`--place`: commands put parameters where they are told to, and say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from program import Cli


@pytest.mark.slow
def test_generate_places_parameters_and_says_what_lies_where(cli: Cli, gguf: Path) -> None:
    command = ("generate", "--model", gguf, "--prompt", "def add(a, b):", "--max-tokens", 8, "--json")
    plain, placed = cli(*command), cli(*command, "--place", r"^mtp\.=pinned_host", "--place", ".=cpu:0")
    assert (plain.status, placed.status) == (0, 0)
    assert json.loads(placed.out)["tokens"] == json.loads(plain.out)["tokens"]
    assert "placed" not in plain.err
    assert "on cpu:0/pinned_host" in placed.err


def test_logits_places_parameters(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    for name, options in {"plain": (), "placed": ("--place", "embed=pinned_host")}.items():
        ran = cli("logits", "--model", gguf, "--tokens", "1,2,3", "--out", tmp_path / f"{name}.npy", *options)
        assert ran.status == 0
    assert "1 parameter" in ran.err
    np.testing.assert_array_equal(np.load(tmp_path / "plain.npy"), np.load(tmp_path / "placed.npy"))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("mtp", "not REGEX=PLACE"),
        ("mtp=cpu:9", "no 'cpu:9'; devices are cpu:0"),
        ("mtp=attic", "no 'attic'; devices are cpu:0"),
        ("experts=pinned_host", "matches none"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "eval", "logits"])
def test_a_wrong_rule_is_one_line(command: str, rule: str, message: str, cli: Cli, gguf: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f("}\n')
    options = {
        "generate": ("--prompt", "def f("),
        "eval": ("--prompts", prompts, "--out", tmp_path / "results.jsonl"),
        "logits": ("--tokens", "1,2", "--out", tmp_path / "logits.npy"),
    }[command]
    assert message in cli(command, "--model", gguf, *options, "--place", rule).error
    assert list(tmp_path.iterdir()) == [prompts]
