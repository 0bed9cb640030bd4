"""Structured output on the command line: `generate`, `eval` with wishes of each prompt, and `chat`."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from program import Cli

REGEX = "(?:ab|c[0-9]){3}"
SCHEMA = {"type": "array", "items": {"enum": ["x", None]}, "minItems": 1, "maxItems": 3}


def test_generate_holds_the_text_to_what_is_asked_for(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    command = ("generate", "--model", gguf, "--prompt", "def f(", "--max-tokens", 30, "--quiet")
    assert re.fullmatch(REGEX, cli(*command, "--regex", REGEX).out.rstrip("\n"))
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    by_file = cli(*command, "--json-schema", file)
    assert 1 <= len(json.loads(by_file.out)) <= 3
    assert cli(*command, "--json-schema", json.dumps(SCHEMA)).out == by_file.out


def test_wrong_wishes_are_one_line(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    command = ("generate", "--model", gguf, "--prompt", "def f(")
    assert "cannot be compiled" in cli(*command, "--regex", "a(b").error
    assert "'minimum', which cannot be held" in cli(*command, "--json-schema", '{"type":"integer","minimum":1}').error
    assert "held to one of them" in cli(*command, "--json-schema", "{}", "--regex", "a").error
    assert "cannot read the schema" in cli(*command, "--json-schema", tmp_path / "none.json").err


def test_prompts_of_a_file_have_wishes_of_their_own(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    lines = [
        {"prompt": "def f(", "json_schema": SCHEMA},
        {"prompt": "class A", "regex": "[0-9]{4}"},
        {"prompt": "import"},
        {"prompt": "x =", "id": "bad", "regex": "a(b"},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("eval", "--model", gguf, "--prompts", prompts, "--out", out, "--max-tokens", 20, "--quiet")
    assert f"{prompts}:4: the regular expression 'a(b' cannot be compiled" in cli(*command).error
    assert cli(*command, "--keep-going").status == 1
    results = {line["id"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert 1 <= len(json.loads(results[0]["text"])) <= 3
    assert re.fullmatch("[0-9]{4}", results[1]["text"])
    assert results[2]["finish_reason"] == "length"
    assert "error" in results["bad"]


def test_every_reply_of_a_chat_is_held_to_it(cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def f(\nclass A\n")))
    ran = cli("chat", "--model", gguf, "--regex", REGEX, "--draft", 0, "--quiet")
    assert [bool(re.fullmatch(REGEX, line)) for line in ran.out.splitlines()] == [True, True]
