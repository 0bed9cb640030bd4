"""`specjax diverge` reads settings and files, and says the verdict in words, in JSON and by its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Cli

import specjax

PROMPT = "def f("


@pytest.mark.slow
def test_a_file_of_ours_is_made_again_and_its_state_looked_at(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours.json"
    settings = ("--max-tokens", 20, "--draft", 3, "--temperature", 0.8, "--top-k", 20, "--accept", "coupled")
    ran = cli("generate", "--model", gguf, "--prompt", PROMPT, *settings, "--json")
    ours.write_text(ran.out)
    ran = cli("diverge", ours, "temperature=0.8,top_k=20,draft=0", "--model", gguf, "--max-tokens", 20)
    assert ran.status == 0, ran.out
    assert "All 20 tokens are the same." in ran.out
    assert "A  ours.json: 20 tokens" in ran.out
    assert "state of A: right. It was compared" in ran.out
    assert "verdict: equal" in ran.out


def test_tokens_of_another_program_end_with_1(cli: Cli, gguf: Path, model: specjax.Model, tmp_path: Path) -> None:
    tokens = model.generate(PROMPT, max_tokens=12, draft=0).tokens
    worst = int(model.next_logits([*model.encode(PROMPT), *tokens[:7]]).argmin())
    theirs = tmp_path / "llama.json"
    theirs.write_text(json.dumps([*tokens[:7], worst, *tokens[8:]]))
    command = ("diverge", "draft=0", theirs, "--model", gguf, "--prompt", PROMPT, "--max-tokens", 12, "--no-states")
    ran = cli(*command)
    assert ran.status == 1
    assert "The first 7 tokens are equal. Token 7 (position 12 of the text) differs:" in ran.out
    assert "verdict: another model. B has token" in ran.out

    document = json.loads(cli(*command, "--json").out)
    assert not document["ok"]
    assert document["verdict"] == "another model"
    assert document["difference"]["candidates"][1]["rank"] == model.target.vocab_size
    assert not document["difference"]["near_tie"]
    assert document["sides"][0]["state"] is None


def test_diverge_refuses_what_it_cannot_compare(cli: Cli, gguf: Path, headless: Path, tmp_path: Path) -> None:
    assert "there is no prompt" in cli("diverge", "--model", gguf).error
    assert "no setting" in cli("diverge", "speed=3", "--model", gguf, "--prompt", PROMPT).error
    assert "missing.json: No such file" in cli("diverge", tmp_path / "missing.json", "--model", gguf).error
    assert "has no MTP head" in cli("diverge", "draft=2", "--model", headless, "--prompt", PROMPT).error
