"""`specjax check` reports what it tried, in text and in JSON, and refuses what it would not look at."""

from __future__ import annotations

import json
from pathlib import Path

from program import Cli


def test_check_passes_a_model_and_says_what_it_tried(cli: Cli, gguf: Path) -> None:
    command = ("check", gguf, "--prompt", "def f(", "--samples", 64, "--max-tokens", 8, "--draft", 2)
    ran = cli(*command)
    assert ran.status == 0
    assert "ok     greedy: are the tokens those of plain decoding?" in ran.out
    assert "64 texts of 10 tokens after each of 1 prompts" in ran.out
    assert "all 10 checks passed" in ran.out
    document = json.loads(cli(*command, "--json").out)
    assert document["ok"]
    assert len(document["checks"]) == 10
    assert document["checks"][0]["name"] == "rules"


def test_check_refuses_options_that_it_would_pass_over(cli: Cli, gguf: Path, headless: Path) -> None:
    assert "--accept: of no use here" in cli("check", gguf, "--accept", "block").error
    assert "has no drafter, so nothing can be lost" in cli("check", headless).error
    assert "alarm_rate is 2.0" in cli("check", gguf, "--alarm-rate", 2).error
