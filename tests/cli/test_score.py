from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from program import Cli

import specjax

QUESTIONS = [
    {"prompt": "def f(", "choices": ["x", "self, y", "é"], "answer": 1, "topic": "names"},
    {"id": "q2", "prompt": "class A", "choices": [":", "(B):"]},
    {"id": 3, "prompt": "class A", "choices": ["[", "(object)"], "answer": 0},
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(question) + "\n\n" for question in QUESTIONS))
    return path


def test_scores_are_those_of_the_model(cli: Cli, gguf: Path, questions: Path, model: specjax.Model) -> None:
    ran = cli("score", "--model", gguf, "--questions", questions, "--json")
    assert ran.status == 0
    results = [json.loads(line) for line in ran.out.splitlines()]
    assert [result["id"] for result in results] == [0, "q2", 3]
    assert results[0]["topic"] == "names"
    for question, result in zip(QUESTIONS, results, strict=True):
        assert result["answer"] == question.get("answer")
        for index, choice in enumerate(question["choices"]):  # type: ignore[arg-type]
            alone = model.score(question["prompt"], choice)  # type: ignore[arg-type]
            assert result["logprobs"][index] == pytest.approx(alone, abs=1e-4)
            assert result["totals"][index] == pytest.approx(sum(alone), abs=1e-4)
            assert result["per_byte"][index] == pytest.approx(sum(alone) / len(choice.encode()), abs=1e-4)
            assert result["tokens"][index] == model.encode_further(choice)
        assert np.log(result["shares"]) - result["totals"] == pytest.approx(-np.logaddexp.reduce(result["totals"]))
        assert result["best"] == np.argmax(result["totals"])
        assert result["best_per_byte"] == np.argmax(result["per_byte"])


def test_the_table_marks_the_best_choice_and_the_right_one(cli: Cli, gguf: Path, questions: Path) -> None:
    found = [
        json.loads(line) for line in cli("score", "--model", gguf, "--questions", questions, "--json").out.splitlines()
    ]
    shown = cli("score", "--model", gguf, "--questions", questions).out
    tables = [table.splitlines() for table in shown.split("\n\n")]
    for question, result, (title, heads, *rows) in zip(QUESTIONS, found, tables[:3], strict=True):
        assert title == f"{result['id']}: {json.dumps(question['prompt'])}"
        assert heads.split() == ["total", "per", "token", "per", "byte", "share", "tokens", "greedy", "choice"]
        for index, row in enumerate(rows):
            assert row.startswith("*") == (index == result["best"])
            assert ("=" in row[:2]) == (index == result["answer"])
            assert f" {result['totals'][index]:.4f} " in row
    right = [result["best"] == result["answer"] for result in found if result["answer"] is not None]
    assert tables[3] == ["questions  2 with an answer", tables[3][1]]
    assert f"{np.mean(right):.3f} by total" in tables[3][1]


def test_choices_of_the_command_line(cli: Cli, gguf: Path, model: specjax.Model) -> None:
    said = model.generate("def f(", max_tokens=3, draft=0).text
    ran = cli("score", "--model", gguf, "--prompt", "def f(", "--choice", said, "--choice", "zzz", "--json")
    assert json.loads(ran.out)["greedy"] == [True, False]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "q.jsonl:1 is not JSON"),
        ("[]", "each line must be an object such as"),
        ('{"prompt": "a"}', "choices are None; give a list"),
        ('{"prompt": "a", "choices": []}', "choices are []"),
        ('{"prompt": "a", "choices": ["b", ""]}', "none empty"),
        ('{"prompt": "", "choices": ["b"]}', "prompt is ''; give a text that is not empty"),
        ('{"prompt": "a", "choices": ["b"], "answer": 1}', "give the number of the right choice, 0 to 0"),
        ('{"prompt": "a", "choices": ["b"], "answer": true}', "answer is True"),
        ('{"prompt": "a", "choices": ["b"], "id": 1.5}', "id is 1.5"),
        ('{"prompt": "a", "choices": ["b"], "best": 1}', "a result has a 'best' of its own"),
        ('{"prompt": "a", "choices": ["b"], "id": 1}\n{"prompt": "a", "choices": ["b"], "id": 1}', "occurs before, at"),
        ("\n", "has no questions"),
        (json.dumps({"prompt": "a", "choices": ["b" * 200]}), "q.jsonl:1: the prompt has 201 tokens"),
    ],
)
def test_bad_questions_are_refused_with_the_place(
    line: str, message: str, cli: Cli, gguf: Path, tmp_path: Path
) -> None:
    (tmp_path / "q.jsonl").write_text(line)
    assert message in cli("score", "--model", gguf, "--questions", tmp_path / "q.jsonl").error


def test_choices_must_be_given_once(cli: Cli, gguf: Path, questions: Path) -> None:
    assert "give at least one --choice" in cli("score", "--model", gguf, "--prompt", "a").error
    assert "of no use with --questions" in cli("score", "--questions", questions, "--choice", "a").error
    assert "one of the arguments --prompt --questions is required" in cli("score", "--choice", "a").error
    assert "--prompt: the prompt is empty" in cli("score", "--model", gguf, "--prompt", "", "--choice", "a").error
    assert "--choice is empty" in cli("score", "--model", gguf, "--prompt", "a", "--choice", "").error
