from __future__ import annotations

import json
from pathlib import Path

import pytest
from full_disk import full_disk

from specjax.errors import PromptError, SpecjaxError
from specjax.evaluation import BadPrompt, ResultFile, parse_prompts, read_prompts
from specjax.evaluation.results import fingerprint_of_model
from specjax.evaluation.summary import summarize

SETTINGS = {"seed": 0, "draft": {"n_max": 3, "p_min": 0.0}, "prompts": "abc"}


def line(name: str | int, **changes: object) -> dict:
    result = {
        "id": name,
        "tokens": [5, 6, 7, 8],
        "finish_reason": "length",
        "rounds": 2,
        "drafted": 4,
        "accepted": 1,
        "drafted_by_position": [2, 2],
        "accepted_by_position": [1, 0],
    }
    return result | changes


def test_prompts_are_numbered_past_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"id": "x", "tokens": [1, 2], "max_tokens": 5}\n{"prompt": "\\u2028b"}')
    first, second, third = read_prompts(path)
    assert (first.index, first.id, first.prompt, first.options) == (0, 0, "a", {})
    assert (second.index, second.id, second.prompt, second.options) == (1, "x", [1, 2], {"max_tokens": 5})
    assert (third.index, third.id, third.prompt) == (2, 2, "\u2028b")
    assert second.place == f"{path}:3"


def test_other_keys_and_a_byte_order_mark_are_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "answer": [1], "n": null}\n{"prompt": "b"}\n', encoding="utf-8-sig")
    first, second = read_prompts(path)
    assert (first.prompt, first.others) == ("a", {"answer": [1], "n": None})
    assert (second.prompt, second.others) == ("b", {})


def test_a_line_that_is_no_prompt_takes_the_name_of_none() -> None:
    bad: list[BadPrompt] = []
    lines = b'{"id": "line 2", "prompt": "a"}\nno JSON\n{"id": "line 2, bad", "prompt": "b"}\n'
    prompts = parse_prompts(lines, "p", bad)
    assert [line.id for line in prompts] == ["line 2", "line 2, bad"]
    assert [line.id for line in bad] == ["line 2, bad, bad"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("\n \n", "has no prompts"),
        ('{"prompt": "a"}\n{"prompt": ', ":2 is not JSON"),
        ("[1]", "must be an object"),
        ('{"prompt": "a", "tokens": [1]}', 'either "prompt" or "tokens"'),
        ('{"id": 1}', 'either "prompt" or "tokens"'),
        ('{"prompt": 1}', "prompt is 1"),
        ('{"tokens": [1, "2"]}', "tokens must be a list of ids"),
        ('{"tokens": [true]}', "tokens must be a list of ids"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "id": null}', "id is None"),
        ('{"prompt": "a", "id": "x\\ud800"}', ":1: the id is not Unicode text: surrogates not allowed at character 1"),
        ('{"prompt": "a", "answer": NaN}', ":1 is not JSON: Out of range float values"),
        ('{"prompt": "a", "answer": [-1e999]}', ":1 is not JSON: Out of range float values"),
        ('{"prompt": "a", "max_token": 1}', "unknown key 'max_token'; is 'max_tokens' meant?"),
        ('{"promt": "a"}', "unknown key 'promt'; is 'prompt' meant?"),
        ('{"prompt": "a", "text": "b"}', "a result has a 'text' of its own; give that key another name"),
        ('{"prompt": "a", "accept": "block"}', "'accept' holds for all prompts of a run; give it to the run"),
        ('{"prompt": "a", "stop": 3}', "stop is 3; give strings that are not empty"),
        ("[" * 100_000, "is not JSON: maximum recursion"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b"}', ":2: the id 1 occurs before, at"),
    ],
)
def test_bad_prompt_files_are_refused_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(PromptError) as raised:
        read_prompts(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_results_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultFile(path, SETTINGS) as results:
        results.append(line(0))
        results.append(line("x"))
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"id": 2, "tok')
    resumed = ResultFile(path, SETTINGS)
    assert list(resumed.results) == [(0, 0), ("x", 0)]
    assert path.read_bytes() != whole  # nothing is touched before the work begins
    with resumed:
        resumed.append(line(2))
    assert path.read_bytes() == whole + json.dumps(line(2)).encode() + b"\n"


def test_two_evaluations_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    late, later = ResultFile(path, SETTINGS), ResultFile(path, SETTINGS)
    busy = pytest.raises(SpecjaxError, match=r"r\.jsonl is being written by another evaluation")
    with ResultFile(path, SETTINGS) as first:
        with busy:
            late.__enter__()
        first.append(line(0))
    with busy:  # what it has read is out of date
        later.__enter__()
    assert [json.loads(text) for text in path.read_text().splitlines()] == [line(0)]
    with ResultFile(path, SETTINGS) as again:
        assert list(again.results) == [(0, 0)]


def test_a_full_disk_is_said_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    room = len(json.dumps(line(0))) * 3 // 2

    def write() -> None:
        with ResultFile(path, SETTINGS) as results:
            results.append(line(0))
            results.append(line(1))

    with full_disk(room), pytest.raises(OSError, match="File too large") as raised:
        write()
    assert raised.value.filename == str(path)
    with ResultFile(path, SETTINGS) as again:
        assert list(again.results) == [(0, 0)]


def test_a_run_killed_before_its_settings_were_written_can_be_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.touch()
    with ResultFile(path, SETTINGS) as results:
        results.append(line(0))
    assert list(ResultFile(path, SETTINGS).results) == [(0, 0)]


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultFile(path, SETTINGS) as results:
        results.append(line(0))
    before = path.read_bytes()
    with pytest.raises(SpecjaxError, match=r"draft\.n_max was 3, is 5; prompts was .abc., is .abd."):
        ResultFile(path, {**SETTINGS, "draft": {"n_max": 5, "p_min": 0.0}, "prompts": "abd"})
    with pytest.raises(SpecjaxError, match=r"draft was .* is null"):
        ResultFile(path, {**SETTINGS, "draft": None})
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"no json\n", b'{"text": "no id"}\n', b"[]\n"])
def test_a_damaged_line_in_the_middle_is_refused(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ResultFile(path, SETTINGS) as results:
        results.append(line(0))
    path.write_bytes(damage + path.read_bytes())
    with pytest.raises(SpecjaxError, match=r"r\.jsonl:1 is not a result"):
        ResultFile(path, SETTINGS)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("precious\n")
    with pytest.raises(SpecjaxError, match="not begun by an evaluation"):
        ResultFile(path, SETTINGS)
    (tmp_path / "r.jsonl.settings.json").write_text("{")
    with pytest.raises(SpecjaxError, match="is damaged"):
        ResultFile(path, SETTINGS)
    assert path.read_text() == "precious\n"


def test_a_model_is_known_by_its_name_and_contents(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"12")
    mark = fingerprint_of_model(path)
    assert mark == fingerprint_of_model(path)
    path.write_bytes(b"123")
    assert mark != fingerprint_of_model(path)
    assert fingerprint_of_model(tmp_path)["name"] == tmp_path.name


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    for part in (first, second):
        part.write_bytes(b"12")
    mark = fingerprint_of_model(first)
    second.write_bytes(b"123")
    assert mark != fingerprint_of_model(first)


def test_the_summary_adds_up() -> None:
    longer = line(1, drafted_by_position=[2, 1, 1], accepted_by_position=[2, 0, 0], accepted=2, finish_reason="eos")
    summary = summarize([line(0), {"id": "x", "index": 2, "error": "no JSON"}, longer])
    assert summary.as_document() == {
        "prompts": 2,
        "texts": 2,
        "tokens": 8,
        "finish_reasons": {"length": 1, "eos": 1},
        "bad": 1,
        "rounds": 4,
        "drafted": 8,
        "accepted": 3,
        "drafted_by_position": [4, 3, 1],
        "accepted_by_position": [3, 0, 0],
        "tokens_per_round": 1.5,
    }
    assert summarize([]).as_document()["tokens_per_round"] == 0
