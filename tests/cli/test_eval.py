from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest
from program import Cli, Ran

import specjax
from specjax.evaluation.prompts import RESULT_KEYS

SAMPLED = ("--temperature", 0.8, "--seed", 3, "--accept", "coupled")
THREE = ("--batch", 3)  # rows, in most of these tests, so that they share programs
PROMPTS: list[dict] = [
    {"prompt": "def f("},
    {"id": "short", "prompt": "x = ", "max_tokens": 3},
    {"id": "one", "tokens": [7], "max_tokens": 1},
    {"prompt": "class A:", "max_tokens": 17},
    {"tokens": [1, 2, 3]},
    {"id": "whole context", "prompt": "import os, sys", "max_tokens": 500},
    {"prompt": "def f("},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def results_of(path: Path) -> dict[str | int, dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["id"]: line for line in lines}


@pytest.fixture
def evaluated(cli: Cli, gguf: Path, prompts: Path, tmp_path: Path) -> Path:
    """Results of all prompts, three rows at a time."""
    out = tmp_path / "three.jsonl"
    ran = cli(*command(gguf, prompts, out), "--json")
    assert ran.status == 0
    summary = json.loads(ran.out)
    assert summary["prompts"] == len(PROMPTS)
    assert summary["tokens"] == sum(len(result["tokens"]) for result in results_of(out).values())
    assert summary["tokens_per_second"] > 0
    return out


def command(gguf: Path, prompts: Path, out: Path) -> tuple:
    return ("eval", "--model", gguf, "--prompts", prompts, "--out", out, "--max-tokens", 40, *SAMPLED, *THREE)


def test_results_do_not_depend_on_the_batch(
    evaluated: Path, cli: Cli, gguf: Path, prompts: Path, tmp_path: Path, model: specjax.Model
) -> None:
    three = results_of(evaluated)
    assert set(three) == {0, "short", "one", 3, 4, "whole context", 6}
    ran = cli(*command(gguf, prompts, tmp_path / "one.jsonl"), "--batch", 1)
    assert results_of(tmp_path / "one.jsonl") == three
    assert [line["index"] for line in results_of(tmp_path / "one.jsonl").values()] == list(range(len(PROMPTS)))
    assert "7 (" in ran.err
    assert "tokens/s" in ran.err

    # More prompts than rows: rows were refilled. Row 0 draws as `generate` does.
    alone = model.generate("def f(", max_tokens=40, draft=3, temperature=0.8, seed=3, accept="coupled")
    assert three[0]["tokens"] == alone.tokens
    assert three[0]["text"] == alone.text
    assert three[0]["accepted"] == alone.stats.accepted
    assert three[6]["tokens"] != three[0]["tokens"]
    assert len(three["short"]["tokens"]) == 3
    assert (len(three["one"]["tokens"]), three["one"]["rounds"]) == (1, 0)
    whole = three["whole context"]
    assert whole["finish_reason"] == "eos" or whole["prompt_tokens"] + len(whole["tokens"]) == 128
    for result in three.values():
        assert len(result["tokens"]) == 1 + result["rounds"] + result["accepted"] or result["finish_reason"] == "eos"


@pytest.mark.slow
def test_a_file_can_be_split_over_machines(evaluated: Path, cli: Cli, gguf: Path, tmp_path: Path) -> None:
    """Draws follow ids, so that the parts give what the whole gave."""
    whole, parts = results_of(evaluated), {}
    named = [{"id": index, **prompt} for index, prompt in enumerate(PROMPTS)]
    for part in range(2):
        prompts, out = tmp_path / f"p{part}.jsonl", tmp_path / f"r{part}.jsonl"
        prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in named[part::2]))
        assert cli(*command(gguf, prompts, out), "--batch", 2).status == 0
        parts |= results_of(out)
    assert {name: result["tokens"] for name, result in parts.items()} == {
        name: result["tokens"] for name, result in whole.items()
    }


def test_a_killed_run_goes_on_where_it_stopped(evaluated: Path, cli: Cli, gguf: Path, prompts: Path) -> None:
    complete, lines = results_of(evaluated), evaluated.read_bytes().splitlines(keepends=True)
    evaluated.write_bytes(b"".join(lines[:4]) + lines[4][:-20])
    ran = cli(*command(gguf, prompts, evaluated))
    assert ran.status == 0
    assert "4 of 7 prompts are done already" in ran.err
    assert results_of(evaluated) == complete
    assert evaluated.read_bytes().startswith(b"".join(lines[:4]))

    again = cli(*command(gguf, prompts, evaluated), "--json", "--quiet")
    assert json.loads(again.out)["prompts"] == 7
    assert results_of(evaluated) == complete

    refused = cli(*command(gguf, prompts, evaluated), "--top-k", 5)
    assert "top_k was 0, is 5" in refused.error
    refused = cli(*command(gguf, prompts, evaluated), "--packed", "a8")
    assert 'packed was "a16", is "a8"' in refused.error
    prompts.write_text('{"prompt": "other"}\n')
    assert "prompts was" in cli(*command(gguf, prompts, evaluated)).error
    assert results_of(evaluated) == complete


def test_prompts_from_a_pipe_are_told_apart(evaluated: Path, cli: Cli, gguf: Path, prompts: Path) -> None:
    def piped(data: bytes) -> Ran:
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        try:
            return cli(*command(gguf, Path(f"/dev/fd/{reader}"), evaluated))
        finally:
            os.close(reader)

    before = evaluated.read_bytes()
    assert "7 of 7 prompts are done already" in piped(prompts.read_bytes()).err
    assert "prompts was" in piped(b'{"prompt": "other"}\n').error
    assert evaluated.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ({"prompt": ""}, (), "p.jsonl:2: the prompt is empty"),
        ({"prompt": "a\ud800"}, (), "p.jsonl:2: the prompt is not Unicode text: surrogates not allowed at character 1"),
        ({"tokens": [999]}, (), "p.jsonl:2: the prompt has token ids outside"),
        ({"tokens": [1] * 128}, (), "p.jsonl:2: the prompt has 128 tokens"),
        ({"prompt": "a"}, ("--batch", 0), "the batch has 0 rows"),
        ({"prompt": "a"}, ("--draft", 99), "a round verifies at most"),
    ],
)
def test_bad_prompts_are_found_before_anything_is_written(
    line: dict, options: tuple, message: str, cli: Cli, gguf: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n' + json.dumps(line))
    out = tmp_path / "r.jsonl"
    assert message in cli("eval", "--model", gguf, "--prompts", prompts, "--out", out, *options).error
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"]


def test_bad_prompts_can_be_passed_over(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    """Each has a result that says what is wrong; the others' results are those of a file without it."""
    lines = [
        *('{"prompt": "def f("}', "no json", '{"id": "far", "tokens": [999], "topic": "x"}'),
        *('{"id": 0, "prompt": "a"}', '{"prompt": "class A:"}', '{"prompt": "x = "}'),
    ]
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_text("\n".join(lines))
    arguments = (*command(gguf, prompts, out), "--keep-going")
    for _ in range(2):  # the second time everything is done
        ran = cli(*arguments, "--json")
        assert ran.status == 1
        summary = json.loads(ran.out)
        assert (summary["prompts"], summary["bad"]) == (3, 3)
    results = results_of(out)
    errors = {name: result["error"] for name, result in results.items() if "error" in result}
    assert errors.keys() == {"line 2", "far", "line 4"}
    assert errors["line 2"].startswith(f"{prompts}:2 is not JSON")
    assert "outside the vocabulary" in errors["far"]
    assert f"{prompts}:4: the id 0 occurs before" in errors["line 4"]
    assert results["far"] == {"id": "far", "index": 2, "error": errors["far"], "topic": "x"}
    assert "3 (" in (said := cli(*arguments).err)
    assert "and 3 with an error" in said

    (tmp_path / "good.jsonl").write_text("\n".join([lines[0], *['{"tokens": [1]}'] * 3, lines[4]]))
    assert cli(*command(gguf, tmp_path / "good.jsonl", tmp_path / "g.jsonl")).status == 0
    good = results_of(tmp_path / "g.jsonl")
    assert (results[0], results[4]) == (good[0], good[4])
    prompts.write_text("{")
    assert cli(*command(gguf, prompts, tmp_path / "none.jsonl"), "--keep-going").status == 1


def test_other_keys_of_a_prompt_are_those_of_its_result(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    others = {"answer": 42, "meta": {"source": ["a", None]}}
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps({"prompt": "def f(", **others}).encode())
    assert cli(*command(gguf, tmp_path / "p.jsonl", tmp_path / "r.jsonl")).status == 0
    (result,) = results_of(tmp_path / "r.jsonl").values()
    assert {key: result.pop(key) for key in others} == others
    assert set(result) == {"id", "tokens", "seed", *RESULT_KEYS} - {"error", "logprobs", "top_logprobs"}


@pytest.mark.skipif(os.name != "posix", reason="needs a signal for one process")
def test_an_interrupted_program_leaves_whole_lines(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_text("".join(json.dumps({"tokens": [i % 250]}) + "\n" for i in range(5000)))

    def interrupt() -> None:
        while not over.wait(0.05) and not (out.exists() and out.stat().st_size):
            pass
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    over, thread = threading.Event(), threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers may ignore it
    thread.start()
    try:
        ran = cli(*command(gguf, prompts, out), "--draft", 0, "--batch", 1)  # the program of the next tests
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert ran.status == 130, ran.err
    assert "the same command goes on from there" in ran.err
    assert "Traceback" not in ran.err
    assert out.read_bytes().endswith(b"\n")
    assert 0 < len(results_of(out)) < 5000


SAMPLES = ("--samples", 3, "--temperature", 0.8, "--seed", 5, "--accept", "coupled", "--max-tokens", 12, *THREE)
RECORDED = ("--logprobs", 0, "--traces")  # both, so that there is one program that records
SAMPLED_PROMPTS: list[dict] = [
    {"prompt": "def f("},
    {"id": "two", "prompt": "class A:", "samples": 2, "seed": 9},
    {"id": "greedy", "prompt": "x = ", "temperature": 0},
]


@pytest.fixture
def sampled_prompts(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in SAMPLED_PROMPTS))
    return path


def samples_in(path: Path) -> dict[tuple, dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["id"], line["sample"]): line for line in lines}


def test_several_samples_of_a_prompt_have_seeds_that_repeat_them(
    cli: Cli, gguf: Path, sampled_prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    ran = cli("eval", "--model", gguf, "--prompts", sampled_prompts, "--out", out, *SAMPLES, "--json")
    assert ran.status == 0
    got = samples_in(out)
    assert {key: line["seed"] for key, line in got.items()} == {
        (0, 0): 5, (0, 1): 6, (0, 2): 7, ("two", 0): 9, ("two", 1): 10, ("greedy", 0): 5,
    }  # fmt: skip
    assert len({tuple(got[0, sample]["tokens"]) for sample in range(3)}) == 3
    summary = json.loads(ran.out)
    assert (summary["prompts"], summary["texts"]) == (3, 6)

    again = tmp_path / "again.jsonl"  # one of them by its seed
    again_prompts = tmp_path / "one.jsonl"
    again_prompts.write_text(json.dumps({"prompt": "def f(", "seed": 7}))
    assert cli("eval", "--model", gguf, "--prompts", again_prompts, "--out", again, *SAMPLES[2:]).status == 0
    assert samples_in(again)[0, 0]["tokens"] == got[0, 2]["tokens"]

    refused = cli("eval", "--model", gguf, "--prompts", sampled_prompts, "--out", out, *SAMPLES[2:])
    assert "samples was 3, is 1" in refused.error
    alike = cli("eval", "--model", gguf, "--prompts", again_prompts, "--out", tmp_path / "x.jsonl", "--samples", 2)
    assert "greedy decoding always says the same; give a --temperature" in alike.error
    none = cli("eval", "--model", gguf, "--prompts", again_prompts, "--out", tmp_path / "x.jsonl", "--samples", 0)
    assert "0 samples are asked for" in none.error


def test_shards_of_which_one_was_killed_are_the_results_of_one_run(
    cli: Cli, gguf: Path, sampled_prompts: Path, tmp_path: Path
) -> None:
    """Killed in the middle of a prompt's samples, with -9."""
    whole, out, other, merged = (tmp_path / f"{name}.jsonl" for name in ("whole", "killed", "other", "merged"))
    arguments = ("eval", "--model", gguf, "--prompts", sampled_prompts, *SAMPLES, "--draft", 0, "--batch", 1)
    assert cli(*arguments, "--out", whole).status == 0
    program = "from specjax.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *map(str, arguments), "--out", str(out), "--shard", "1/2"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n")):
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
        process.kill()
    done = out.read_bytes()
    done = done[: done.rfind(b"\n") + 1]
    assert len(samples_in_bytes(done)) > 0
    assert cli(*arguments, "--out", other, "--shard", "2/2").status == 0
    merge = ("merge-results", "--prompts", sampled_prompts, "--out", merged, other, out)
    if len(samples_in_bytes(done)) < 4:  # else the whole shard was done before it could be killed
        assert f"{4 - len(samples_in_bytes(done))} of shard 1/2 ({out})" in cli(*merge).error
        assert not merged.exists()
    ran = cli(*arguments, "--out", out, "--shard", "1/2")
    assert ran.status == 0
    assert f"{len(samples_in_bytes(done))} of 4 texts are done already" in ran.err
    assert out.read_bytes().startswith(done)

    ran = cli(*merge, "--json")
    assert ran.status == 0
    assert json.loads(ran.out)["texts"] == 6
    assert samples_in_bytes(merged.read_bytes()) == samples_in_bytes(whole.read_bytes())
    ran = cli(*arguments, "--out", merged, "--batch", 1)
    assert "6 of 6 texts are done already" in ran.err, "a run without shards takes up what was merged"


def samples_in_bytes(data: bytes) -> list[dict]:
    return [json.loads(line) for line in data.splitlines()]


def shown(text: str) -> str:
    """With pictures of control characters."""
    return "".join(chr(0x2400 + ord(char)) if ord(char) < 32 and char not in "\t\n" else char for char in text)


def test_a_report_is_one_page_with_plots_and_figures(
    cli: Cli, gguf: Path, sampled_prompts: Path, tmp_path: Path
) -> None:
    out, page = tmp_path / "r.jsonl", tmp_path / "r.html"
    with sampled_prompts.open("a") as file:
        file.write(json.dumps({"id": "</script><b>", "prompt": "import os", "topic": "</script>"}))
    model = ("--model", gguf, "--prompts", sampled_prompts, "--out", out)
    arguments = ("eval", *model, *SAMPLES, *RECORDED, tmp_path / "traces")
    assert f"wrote {page}" in cli(*arguments, "--report", page).err
    text = page.read_text()
    document = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))
    charts = document.findall(".//svg")
    titles = [chart.attrib["aria-label"] for chart in charts]
    assert titles == [
        "Share of drafts accepted",
        "Texts by tokens a round",
        "Texts by length",
        "Texts by length of the prompt",
        "Texts by mean log-probability",
    ]
    assert not document.findall(".//*[@src]")
    assert not document.findall(".//link")

    figures = json.loads(text.partition('id="figures">')[2].partition("</script>")[0])
    results = samples_in(out)
    assert figures["texts"] == len(results) == 9
    assert figures["tokens"] == sum(len(result["tokens"]) for result in results.values())
    assert figures["settings"]["samples"] == 3
    for name in ("tokens_by_text", "mean_logprob_by_text", "prompt_tokens"):
        assert sum(figures[name]["counts"]) == len(results)
        assert len(figures[name]["edges"]) == len(figures[name]["counts"]) + 1
    bars = charts[0].findall("rect")
    assert len(bars) == len(figures["acceptance_by_position"]) == 3
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert [height / 146 for height in heights] == pytest.approx(figures["acceptance_by_position"], abs=1e-3)
    cells = {cell.text for cell in document.findall(".//td/pre")}
    assert {shown(result["text"]) or None for result in results.values()} <= cells

    before = page.read_text()  # again from what is done, and no model is read
    page.unlink()
    assert cli(*arguments, "--report", page).status == 0
    assert page.read_text() == before
    assert cli(*arguments, "--report", tmp_path / "r.json").status == 0
    assert json.loads((tmp_path / "r.json").read_text()) == figures


def test_a_report_takes_no_other_files_place(cli: Cli, gguf: Path, sampled_prompts: Path, tmp_path: Path) -> None:
    before, out = sampled_prompts.read_text(), tmp_path / "r.jsonl"
    for path in (sampled_prompts, out):
        ran = cli("eval", "--model", gguf, "--prompts", sampled_prompts, "--out", out, *SAMPLES, "--report", path)
        assert ran.status == 2
        assert f"--report {path} would overwrite a file of this run" in ran.err
    assert sampled_prompts.read_text() == before
    assert not out.exists()


def test_traces_of_all_texts_are_written(cli: Cli, gguf: Path, sampled_prompts: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "r.jsonl", tmp_path / "traces"
    common = ("eval", "--model", gguf, "--prompts", sampled_prompts, *SAMPLES)
    assert cli(*common, "--out", out, *RECORDED, folder).status == 0
    traces = {path.stem: specjax.Trace.load(path) for path in folder.glob("*.npz")}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(traces) == len(lines) == 6
    for line in lines:
        trace = traces[f"{line['index']}-{line['sample']}"]
        assert [trace.texts[0].first, *trace.tokens[trace.tokens >= 0]][: len(line["tokens"])] == line["tokens"]
        assert trace.n_accepted.sum() == line["accepted"]
    assert "trace" not in lines[0]
    plain = tmp_path / "plain.jsonl"
    assert cli(*common, "--out", plain).status == 0
    for line in (recorded := samples_in(out)).values():
        assert len(line.pop("logprobs")) == len(line.pop("top_logprobs")) == len(line["tokens"])
    assert samples_in(plain) == recorded, "a trace changes nothing, and results are those of runs without one"
