from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specjax.errors import SpecjaxError
from specjax.evaluation import ResultFile, Shard, merge, parse_prompts, samples_of
from specjax.evaluation.results import fingerprint_of_bytes, fingerprint_of_model
from specjax.runtime.options import GenerateOptions

PROMPTS = b"""\
{"prompt": "a"}
{"prompt": "b", "samples": 3}
no JSON
{"id": "d", "prompt": "d"}
{"id": "e", "prompt": "e", "temperature": 0}
"""
SETTINGS: dict[str, Any] = {
    "prompts": fingerprint_of_bytes(PROMPTS),
    "temperature": 0.5,
    "samples": 2,
    "model": {"name": "m"},
}


def parts(folder: Path, of: int, *, without: tuple = (), **changes: Any) -> list[Path]:
    """Result files of all shards, written in another order than that of the prompts."""
    bad: list = []
    texts = [*samples_of(parse_prompts(PROMPTS, "p", bad), GenerateOptions(temperature=0.5), 2), *bad]
    paths = []
    for number in range(1, of + 1):
        shard = Shard(number, of)
        paths.append(folder / f"part-{number}.jsonl")
        with ResultFile(paths[-1], SETTINGS | {"shard": str(shard)} | changes) as file:
            for text in reversed(texts):
                if shard.has(text) and text.key not in without:
                    line = {"id": text.id, "index": text.index}
                    file.append(line | ({"error": text.error} if text in bad else {"sample": text.sample}))
    return paths


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_every_prompt_is_in_one_shard(of: int) -> None:
    lines = parse_prompts(b'{"prompt": "a"}\n' * 20, "p")
    shards = [[line.index for line in lines if Shard(number, of).has(line)] for number in range(1, of + 1)]
    assert sorted(index for shard in shards for index in shard) == list(range(20))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/", "/2", "a/b", "-1/2", "1/2/3"])
def test_a_shard_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard; give I/N, such as 2/4"):
        Shard.parse(text)


@pytest.mark.parametrize("of", [1, 2, 7])
def test_a_merged_file_has_all_results_in_order(tmp_path: Path, of: int) -> None:
    """Also where shards are empty, or a prompt with samples has one error."""
    out = tmp_path / "all.jsonl"
    merge(list(reversed(parts(tmp_path, of))), PROMPTS, "p", out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["id"], line.get("sample")) for line in lines] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (1, 2), ("line 3", None), ("d", 0), ("d", 1), ("e", 0),
    ]  # fmt: skip
    ResultFile(out, SETTINGS | {"shard": None})  # whose settings are those of a run without shards

    whole = out.read_bytes()
    out.write_bytes(whole[: whole.find(b"\n") + 9])  # a merge that was killed
    merge(sorted(tmp_path.glob("part-*.jsonl")), PROMPTS, "p", out)
    assert out.read_bytes() == whole


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    files = parts(tmp_path, 3, without=((1, 2), ("e", 0)))
    with pytest.raises(SpecjaxError, match=r"2 of shard 2/3 \(.*part-2\.jsonl\), such as that of prompt 1"):
        merge(files, PROMPTS, "p", tmp_path / "all.jsonl")
    with pytest.raises(SpecjaxError, match="results of shard 1/3, 3/3 are not among the files"):
        merge(files[1:2], PROMPTS, "p", tmp_path / "all.jsonl")
    with pytest.raises(FileNotFoundError):
        merge([*files, tmp_path / "none.jsonl"], PROMPTS, "p", tmp_path / "all.jsonl")
    assert not (tmp_path / "all.jsonl").exists()


def test_a_prompt_with_an_error_lacks_no_samples(tmp_path: Path) -> None:
    files = parts(tmp_path, 1, without=((1, 0), (1, 1), (1, 2)))
    with ResultFile(files[0], SETTINGS | {"shard": "1/1"}) as file:
        file.append({"id": 1, "index": 1, "error": "too long"})
    merged = merge(files, PROMPTS, "p", tmp_path / "all.jsonl")
    assert merged.results[1, 0]["error"] == "too long"


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    out = tmp_path / "all.jsonl"
    files, others = parts(tmp_path, 2), parts(tmp_path / "other", 2, model={"name": "n"})
    with pytest.raises(SpecjaxError, match=r'of runs with other settings: model\.name was "m", is "n"'):
        merge([files[0], others[1]], PROMPTS, "p", out)
    with pytest.raises(SpecjaxError, match="are both of shard 1/2; leave one out"):
        merge([files[0], *files], PROMPTS, "p", out)
    with pytest.raises(SpecjaxError, match=r"part-1\.jsonl was made from other prompts than p has now"):
        merge(files, PROMPTS + b'{"prompt": "f"}', "p", out)
    (tmp_path / "three").mkdir()
    with pytest.raises(SpecjaxError, match="of runs in 2 and in 3 shards"):
        merge([*files, *parts(tmp_path / "three", 3)[2:]], PROMPTS, "p", out)
    with ResultFile(tmp_path / "whole.jsonl", SETTINGS | {"shard": None}):
        pass
    with pytest.raises(SpecjaxError, match=r"whole\.jsonl is not of a shard"):
        merge([tmp_path / "whole.jsonl"], PROMPTS, "p", out)
    (tmp_path / "text.jsonl").write_text("precious")
    with pytest.raises(SpecjaxError, match="not begun by an evaluation: give the result file of an evaluation"):
        merge([tmp_path / "text.jsonl"], PROMPTS, "p", out)
    assert not out.exists()


def test_a_copy_of_a_model_is_known_again(tmp_path: Path) -> None:
    """Its time of change is another one; a change in the middle of it is seen."""
    data = bytearray(range(256)) * 60_000
    marks = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.gguf").write_bytes(data)
        marks.append(fingerprint_of_model(tmp_path / name / "m.gguf"))
    assert marks[0] == marks[1]
    start = len(data) // 2
    data[start : start + 500_000] = bytes(500_000)
    (tmp_path / "b" / "m.gguf").write_bytes(data)
    assert marks[0] != fingerprint_of_model(tmp_path / "b" / "m.gguf")
