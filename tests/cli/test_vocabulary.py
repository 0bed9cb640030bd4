"""The command that lists tokens to draft, and the commands that take such a list."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from program import Cli
from small_model import CONFIG, END, byte_tokenizer

import specjax
from specjax.analysis import token_counts

TEXT = "def f(d):\n    return d\n" * 5 + "\N{GREEK SMALL LETTER ALPHA}"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def test_the_most_frequent_tokens_of_texts_are_listed(
    cli: Cli, gguf: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In portions, whose ends are those of lines."""
    monkeypatch.setattr(token_counts, "PORTION", 30)
    counts = Counter(byte_tokenizer().encode(TEXT, special=False))
    out = tmp_path / "tokens.json"
    ran = cli("vocabulary", "--model", gguf, "--text", text, text, "--size", 9, "--out", out)
    assert ran.status == 0, ran.err
    document = json.loads(out.read_text())
    want = sorted(sorted(counts, key=lambda token: (-counts[token], token))[:8], key=lambda t: (-counts[t], t))
    assert document["tokens"] == [*want, END]
    assert document["vocab_size"] == CONFIG.vocab_size
    assert document["origin"] == f"counted in {2 * counts.total()} tokens: text.txt, text.txt"
    share = sum(counts[token] for token in want) / counts.total()
    assert f"9 of {CONFIG.vocab_size} tokens, which are {share:.2%} of the {2 * counts.total()}" in ran.err


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    lines = [{"prompt": "def f("}, {"tokens": [1, 2, 3]}, {"prompt": "x"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "p.jsonl"


def test_what_the_model_says_is_counted_and_no_more_than_was_asked_for(
    cli: Cli, gguf: Path, prompts: Path, model: specjax.Model, tmp_path: Path
) -> None:
    out = tmp_path / "tokens.json"
    options = ("--prompts", prompts, "--max-tokens", 6, "--ignore-eos", "--batch", 1, "--out", out)
    assert cli("vocabulary", "--model", gguf, *options, "--total", 7).status == 0
    said = [model.generate(prompt, max_tokens=6, ignore_eos=True).tokens for prompt in ("def f(", [1, 2, 3])]
    counts = Counter(said[0] + said[1])
    document = json.loads(out.read_text())
    assert len(document["tokens"]) == CONFIG.vocab_size // 8
    assert document["tokens"][: len(counts)] == sorted(counts, key=lambda token: (-counts[token], token))
    assert document["origin"] == "counted in 12 tokens: continuations of p.jsonl"


def test_an_interrupt_writes_what_was_counted_and_leaves_a_whole_file(
    cli: Cli, gguf: Path, text: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "tokens.json"
    out.write_text("as it was")

    def interrupted(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(token_counts.TokenCounts, "generate", interrupted)
    command = ("vocabulary", "--model", gguf, "--prompts", prompts, "--out", out)
    assert cli(*command).status == 130
    assert out.read_text() == "as it was"
    assert cli(*command, "--text", text).status == 130
    assert json.loads(out.read_text())["tokens"][0] == ord(" ")


def test_commands_take_a_list(cli: Cli, gguf: Path, text: Path, prompts: Path, tmp_path: Path) -> None:
    tokens, results = tmp_path / "tokens.json", tmp_path / "r.jsonl"
    assert cli("vocabulary", "--model", gguf, "--text", text, "--size", 40, "--out", tokens).status == 0
    assert "40 of 272 tokens" in cli("inspect", gguf, "--draft-vocab", tokens).out
    assert "is asked for" in cli("inspect", gguf, "--draft-vocab", 273).error
    evaluate = ("eval", "--model", gguf, "--prompts", prompts, "--out", results, "--max-tokens", 4)
    assert cli(*evaluate, "--draft-vocab", tokens).status == 0
    assert json.loads((tmp_path / "r.jsonl.settings.json").read_text())["draft_vocab"]["name"] == "tokens.json"
    assert "begun with other settings: draft_vocab was " in cli(*evaluate, "--draft-vocab", 40).error


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ((), "nothing to count; give --text, or --prompts"),
        (("--text", "{text}", "--size", 273), "of 273 tokens is asked for"),
        (("--text", "{empty}"), "nothing was counted"),
        (("--text", "{latin}"), "latin.txt is not UTF-8 text"),
        (("--prompts", "{text}", "--total", 0), "--total is 0; it must be positive"),
        (("--prompts", "{text}"), "is not JSON"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    options: tuple, wrong: str, cli: Cli, gguf: Path, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("d\u00e9f".encode("latin-1"))
    names = {"{text}": text, "{empty}": tmp_path / "empty.txt", "{latin}": tmp_path / "latin.txt"}
    out = tmp_path / "tokens.json"
    words = [names.get(word, word) for word in options]
    assert wrong in cli("vocabulary", "--model", gguf, "--out", out, *words).error
    assert not out.exists()
