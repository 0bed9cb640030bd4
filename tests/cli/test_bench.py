"""`specjax bench`: speed with real and with synthetic acceptance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program import Cli

import specjax
from specjax.analysis.benchmark import measure_speed, random_prompt
from specjax.decoding.acceptance import Synthetic

FAST = ("--turns", 1, "--max-tokens", 40)
LOTS = (*FAST, "--synthetic-acceptance", "1,0.5")


@pytest.mark.slow
def test_synthetic_acceptance_decides_how_many_drafts_stand(cli: Cli, gguf: Path) -> None:
    def measured() -> dict[str, Any]:
        ran = cli("bench", gguf, "--draft", 2, 0, *LOTS, "--json")
        assert ran.status == 0
        return json.loads(ran.out)

    document = measured()
    assert document["synthetic_acceptance"] == [1, 0.5]
    plain, two = document["speeds"]
    assert (plain["draft"], two["draft"]) == (0, 2)
    assert (plain["expected_tokens_per_round"], two["expected_tokens_per_round"]) == (1, 2.5)
    assert (plain["tokens_per_round"], plain["speedup"], plain["bound"]) == (1, 1, 1)
    assert 2 <= two["tokens_per_round"] < 3
    for speed in (plain, two):
        assert speed["tokens_per_second"] > 0
        assert speed["round"] == pytest.approx(speed["tokens_per_round"] / speed["tokens_per_second"])
        halves = speed["draft_per_round"] + speed["verify_per_round"]
        assert speed["bound"] == pytest.approx(speed["tokens_per_round"] * plain["verify_per_round"] / halves)
    assert measured()["speeds"][1]["acceptance_by_position"] == two["acceptance_by_position"]


@pytest.mark.slow
def test_real_acceptance_on_prompts(cli: Cli, gguf: Path, model: specjax.Model, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "def f("}\n{"tokens": [1, 2, 3]}\n')
    ran = cli("bench", gguf, "--prompts", prompts, "--draft", 2, *FAST, "--ignore-eos")
    assert ran.status == 0
    options = specjax.GenerateOptions(max_tokens=40, draft=2, ignore_eos=True)
    results = [model.generate(prompt, options) for prompt in ("def f(", [1, 2, 3])]
    tau = sum(each.stats.tokens for each in results) / sum(each.stats.rounds for each in results)
    _, columns, _, two, shares = ran.out.splitlines()
    assert columns.split()[:3] == ["K", "tok/s", "tau"]
    assert two.split()[0] == "2"
    assert two.split()[2] == f"{tau:.2f}"
    assert shares.startswith("K = 2: accepted by position 0.")


def test_the_table_says_that_lots_were_drawn(cli: Cli, headless: Path) -> None:
    ran = cli("bench", headless, "--draft", 0, *LOTS)
    assert "SYNTHETIC acceptance 1, 0.5: drawn by lot" in ran.out


def test_the_document_says_what_was_measured(cli: Cli, headless: Path) -> None:
    types = ("--dtype", "bfloat16", "--kv-type-k", "q8_0", "--packed", "off")
    document = json.loads(cli("bench", headless, "--draft", 0, *LOTS, *types, "--json").out)
    assert (document["dtype"], document["kv_type_k"], document["kv_type_v"]) == ("bfloat16", "q8_0", "f32")
    assert (document["packed"], document["place"], document["mesh"]) == ("off", [], None)
    assert (document["drafter"], document["draft_vocab"]) == (None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--draft", 3, *LOTS), "3 draft tokens are asked for, but there are 2 probabilities"),
        (("--draft", 1, *FAST), "no prompts: give --prompts, or --synthetic-acceptance"),
        (("--synthetic-acceptance", "0.8;0.7"), "'0.8;0.7' is not a list of probabilities like 0.8,0.7,0.6"),
        (("--synthetic-acceptance", "1.2"), "'1.2' is not a list of probabilities"),
        (("--accept", "coupled", *LOTS), "--accept: --synthetic-acceptance alone decides"),
        (("--draft-p-min", 0.5, *LOTS), "--draft-p-min: --synthetic-acceptance alone decides"),
        (
            ("--draft", 1, "model.gguf"),
            "'model.gguf' is not what --draft takes: a number of drafts or auto is, and a model's path",
        ),
        (("--turns", 0), "--turns is 0; give at least 1"),
        (("--draft", 0, "--max-tokens", 1, "--prompt-length", 4), "every text ends with its first token"),
        (("--draft", 1, "--prompt-length", 0), "the prompt is empty"),
        (("--draft", 1, "--prompt-length", 4, "--prompts", "p.jsonl"), "not allowed with argument"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: tuple, message: str, cli: Cli, gguf: Path) -> None:
    assert message in cli("bench", gguf, *options).error


def test_a_model_without_drafter_cannot_draft(cli: Cli, headless: Path) -> None:
    assert "nothing can be drafted" in cli("bench", headless, "--draft", 1, *LOTS).error


@pytest.mark.parametrize("command", ["generate", "chat", "eval"])
def test_texts_are_never_made_by_lot(cli: Cli, gguf: Path, command: str) -> None:
    files = ("--prompts", "p.jsonl", "--out", "r.jsonl") if command == "eval" else ()
    assert "invalid choice: 'synthetic'" in cli(command, "--model", gguf, *files, "--accept", "synthetic").error


def test_speeds_are_compared_with_plain_decoding(model: specjax.Model) -> None:
    plain = specjax.GenerateOptions(max_tokens=8, draft=0)
    prompt = random_prompt(model.target.vocab_size, 5, seed=0)
    assert prompt == random_prompt(model.target.vocab_size, 5, seed=0) != random_prompt(272, 5, seed=1)
    with pytest.raises(ValueError, match="the first options must be those of plain decoding"):
        measure_speed(model, [prompt], [replace(plain, draft=1)], synthetic=Synthetic((1.0,)))
    with pytest.raises(ValueError, match="0 prompts and 5 turns; at least one of each"):
        measure_speed(model, [], [plain])
