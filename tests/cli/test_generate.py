from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from full_disk import full_disk
from program import Cli

import specjax
from specjax.analysis.divergence import Divergence, find_divergence, tolerance_of
from specjax.cli import comparison
from specjax.cli.comparison import Comparison
from specjax.cli.generate import DEFAULT_PROMPT, _pieces
from specjax.cli.generate_report import _comparison_rows
from specjax.errors import SpecjaxError
from specjax.runtime.options import GenerateOptions
from specjax.state import KVTypes
from specjax.traces.events import summarize_trace

PROMPT = "def f("
SAMPLED = ("--temperature", 0.8, "--seed", 3, "--accept", "coupled")


def test_the_text_goes_to_stdout_and_the_summary_to_stderr(cli: Cli, gguf: Path, model: specjax.Model) -> None:
    ran = cli("generate", "--model", gguf, "--prompt", PROMPT, "--max-tokens", 40)
    expected = model.generate(PROMPT, max_tokens=40, draft=3)
    assert ran.status == 0
    assert ran.out == expected.text.removesuffix("\n") + "\n"
    for name in ("speed", "tokens per round", "by position", "draft", "verify", "compile"):
        assert name in ran.err
    assert "check" not in ran.err


def test_a_trace_on_a_full_disk_is_said_with_its_name(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    command = ("generate", "--model", gguf, "--prompt", PROMPT, "--max-tokens", 40, "--json", "--trace", trace)
    assert cli(*command).status == 0  # compiled programs, which a cache may keep, are not what the disk is full of
    with full_disk(200):
        assert cli(*command).error == f"{trace}: File too large\n"


def test_json_is_one_object_whose_counts_agree_with_the_trace(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    ran = cli(
        *("generate", "--model", gguf, "--prompt", PROMPT, "--max-tokens", 40),
        *("--compare", "--json", "--trace", trace),
    )
    assert ran.status == 0
    assert ran.out.count("\n") == 1
    document = json.loads(ran.out)
    assert len(document["tokens"]) == 40
    assert len(document["tokens"]) == 1 + document["rounds"] + document["accepted"]
    assert sum(document["accepted_by_position"]) == document["accepted"] > 0
    assert sum(document["drafted_by_position"]) == document["drafted"] > document["accepted"]
    assert document["timings"].keys() == {
        *("load", "compile", "prefill", "decode"),
        *("draft_per_round", "verify_per_round"),
    }
    assert all(seconds > 0 for name, seconds in document["timings"].items() if name != "compile")

    compared = document["compare"]
    assert compared["equal"]
    assert compared["tokens"] == document["tokens"]
    assert compared["speedup"] > 0
    assert compared["bound"] > 0

    summary = summarize_trace(trace)
    assert summary.rounds == document["rounds"]
    assert summary.accepted_by_position == document["accepted_by_position"]
    assert summary.drafted_by_position == document["drafted_by_position"]


def test_coupled_sampling_compares_equal_and_quiet_measures_nothing(cli: Cli, gguf: Path) -> None:
    ran = cli(
        *("generate", "--model", gguf, "--tokens", "1,2,3", "--max-tokens", 40),
        *("--compare", "--json", "--quiet", *SAMPLED),
    )
    document = json.loads(ran.out)
    assert ran.status == 0
    assert document["compare"]["equal"]
    assert document["compare"]["bound"] is None
    assert "draft_per_round" not in document["timings"]
    assert ran.err == ""


def test_a_difference_that_rounding_does_not_explain_fails(
    cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = Divergence(position=7, tokens=(1, 2), margin=0.5, relative_margin=0.1, tolerance=1e-3)
    monkeypatch.setattr(comparison, "find_divergence", lambda *_: difference)
    command = ("generate", "--model", gguf, "--prompt", PROMPT, "--max-tokens", 40, "--compare", "--quiet")
    ran = cli(*command)
    assert ran.status == 1
    assert "token 7 is 1 here and 2 there" in ran.err
    assert "NOT a near-tie" in ran.err

    monkeypatch.setattr(comparison, "find_divergence", lambda *_: replace(difference, relative_margin=1e-4))
    ran = cli(*command, "--json")
    assert ran.status == 0
    assert json.loads(ran.out)["compare"]["divergence"]["near_tie"]


def test_a_divergence_has_the_margin_of_the_two_tokens(model: specjax.Model) -> None:
    prompt = model.encode(PROMPT)
    plain = model.generate(PROMPT, max_tokens=12, draft=0).tokens
    options = GenerateOptions(draft=3)
    assert find_divergence(model, prompt, options, plain, plain) is None

    logits = model.logits([*prompt, *plain[:5]])[-1]
    second = int(logits.argsort()[-2])
    found = find_divergence(model, prompt, options, [*plain[:5], second, *plain[6:]], plain)
    assert found is not None
    assert (found.position, found.tokens) == (5, (second, plain[5]))
    assert found.margin == pytest.approx(float(logits.max() - logits[second]), rel=1e-4)
    assert found.relative_margin == pytest.approx(found.margin / abs(logits).max(), rel=1e-4)

    shorter = find_divergence(model, prompt, options, plain[:-1], plain)
    assert shorter is not None
    assert not shorter.near_tie


def test_narrow_types_have_wider_ties() -> None:
    assert tolerance_of("float32", KVTypes()) == 1e-3
    assert tolerance_of("float32", KVTypes("f32", "bf16")) == 2**-7


def test_a_stream_goes_on_where_the_last_iteration_stopped(model: specjax.Model) -> None:
    whole = model.generate(PROMPT, max_tokens=40, draft=3)
    stream = model.stream(PROMPT, max_tokens=40, draft=3)
    with pytest.raises(SpecjaxError, match="not exhausted"):
        _ = stream.result
    pieces = [next(iter(stream))]
    pieces.extend(stream)
    assert "".join(pieces) == whole.text
    assert list(stream) == []
    assert (stream.result.tokens, stream.result.stats) == (whole.tokens, whole.stats)


def test_rejection_sampling_is_compared_for_speed_only(model: specjax.Model) -> None:
    plain = model.generate(PROMPT, max_tokens=12, draft=0)
    rows = dict(_comparison_rows(Comparison(plain, False, None, 1.5, None, None, seconds=0.3)))
    assert rows["speed-up"] == "1.50"
    assert "keeps the distribution" in rows["check"]


def test_what_was_decoded_in_a_moment_has_no_speed_up(model: specjax.Model) -> None:
    plain = model.generate(PROMPT, max_tokens=12, draft=0)
    comparison = Comparison(plain, True, None, 2.84, 1.2, None, seconds=0.009)
    said = dict(_comparison_rows(comparison))["speed-up"]
    assert said.startswith("not told: 9 ms of decoding are too short to measure (more --max-tokens: at least 0.3 s)")
    assert "2.84" not in said
    assert "bound 1.20" in said
    assert not comparison.measurable


def test_a_comparison_of_one_token_has_no_speed_up(cli: Cli, gguf: Path) -> None:
    command = ("generate", "--model", gguf, "--prompt", PROMPT, "--max-tokens", 1, "--compare")
    ran = cli(*command)
    assert ran.status == 0
    assert "too short to measure" in ran.err
    document = json.loads(cli(*command, "--json").out)["compare"]
    assert document["speedup"] is None
    assert not document["measurable"]


def test_without_a_tokenizer_the_ids_are_the_output(model: specjax.Model) -> None:
    class Stream:
        def updates(self) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(tokens=[5])
            yield SimpleNamespace(tokens=[6, 7])

    pieces = _pieces(Stream(), replace(model, tokenizer=None))  # type: ignore[arg-type]
    assert "".join(pieces) == "5,6,7"


def test_the_bundled_model_has_a_prompt_of_its_own(
    cli: Cli, gguf: Path, monkeypatch: pytest.MonkeyPatch, model: specjax.Model
) -> None:
    monkeypatch.setattr("specjax.runtime.loading.bundled_model", lambda: gguf)
    monkeypatch.setattr("specjax.cli.generate.DEFAULT_PROMPT", PROMPT)
    ran = cli("generate", "--max-tokens", 40)
    assert ran.status == 0
    assert ran.err.startswith(PROMPT)
    assert ran.out.startswith(model.generate(PROMPT, max_tokens=40, draft=3).text)
    assert DEFAULT_PROMPT.startswith("def ")


def test_a_trace_of_arrays_is_written_by_its_name(cli: Cli, gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    ran = cli("generate", "--model", gguf, "--prompt", PROMPT, "--max-tokens", 12, "--json", "--quiet", "--trace", path)
    document, trace = json.loads(ran.out), specjax.Trace.load(path)
    assert [trace.texts[0].first, *trace.tokens[trace.tokens >= 0]][:12] == document["tokens"]
