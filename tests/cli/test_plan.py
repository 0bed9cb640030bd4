from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Cli


@pytest.mark.slow
def test_a_plan_names_the_fastest_number_of_drafts(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    prompts, picture, trace = tmp_path / "prompts.jsonl", tmp_path / "plan.png", tmp_path / "trace.npz"
    prompts.write_text('{"prompt": "def f("}\n')
    common = ("--batch", 1, "--context", 32, "--draft", 2)
    ran = cli("plan", gguf, "--prompts", prompts, *common, "--max-tokens", 24, "--plot", picture, "--json")
    assert ran.status == 0
    document = json.loads(ran.out)["plan"]
    assert [each["draft"] for each in document] == [0, 2]
    assert document[0]["speedup"] == 1
    assert picture.read_bytes().startswith(b"\x89PNG")

    assert cli("generate", "--model", gguf, "--prompt", "a", "--max-tokens", 24, "--trace", trace, "--json").status == 0
    told = cli("plan", gguf, "--trace", trace, *common)
    assert told.status == 0
    assert "Batch 1, context 32: " in told.out
    assert "speed-up" in told.out

    both = cli("plan", gguf, "--prompts", prompts, *common, "--max-tokens", 24, "--against", "ngram", "--json")
    assert [(each["drafter"], each["draft"]) for each in json.loads(both.out)["plan"]] == [
        ("", 0),
        ("Qwen35MTP", 2),
        ("ngram", 2),
    ]
    table = cli("plan", gguf, "--prompts", prompts, *common, "--max-tokens", 24, "--against", "ngram").out
    assert "drafted for by Qwen35MTP" in table
    assert "drafted for by ngram" in table


def test_what_a_plan_needs_is_said(cli: Cli, gguf: Path) -> None:
    assert "no prompts: give --prompts, or --trace" in cli("plan", gguf).error
    assert "says nothing of other drafters" in cli("plan", gguf, "--trace", "t.npz", "--against", "ngram").error
    assert "a plan is what makes it unnecessary" in cli("plan", "--draft", "auto").error
