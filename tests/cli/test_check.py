"""`specjax check` reports what it tried, in text and in JSON, and refuses what it would not look at."""

from __future__ import annotations

import json
from pathlib import Path

from program import Cli


def test_check_passes_a_model_and_says_what_it_tried(cli: Cli, shallow: Path) -> None:
    ran = cli("check", shallow, "--prompt", "def f(", "--samples", 64, "--max-tokens", 8, "--draft", 2, "--json")
    assert ran.status == 0
    document = json.loads(ran.out)
    assert document["ok"]
    assert len(document["checks"]) == 10
    assert document["checks"][0]["name"] == "rules"
    assert "64 texts of 10 tokens after each of 1 prompts" in ran.out


def test_check_refuses_options_that_it_would_pass_over(cli: Cli, gguf: Path, headless: Path) -> None:
    assert "--accept: of no use here" in cli("check", gguf, "--accept", "block").error
    assert "has no drafter, so nothing can be lost" in cli("check", headless).error
    assert "alarm_rate is 2.0" in cli("check", gguf, "--alarm-rate", 2).error
