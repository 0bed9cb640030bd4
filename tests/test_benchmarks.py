"""The verdicts of the benchmarks, and that they run."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from checkpoints.quantization import QuantizeOptions, prepare
from specjax.decoding.stats import DecodeStats
from specjax.mesh.plan import without_devices
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model
from specjax.runtime.options import GenerateOptions

LOGITS = np.array([4, 4 - 1e-5, 2, 0, -1], np.float32)
END = 3


@pytest.fixture
def model() -> Any:
    weight = {"target": {"embed": {"weight": np.zeros(1, np.float32)}}}
    tokenizer = SimpleNamespace(eos_ids={END})
    return SimpleNamespace(
        next_logits=lambda prefix, kv_types: LOGITS,
        grammar=lambda options: None,
        params=weight,
        tokenizer=tokenizer,
    )


def generated(*tokens: int) -> Any:
    return SimpleNamespace(prompt_tokens=[1], tokens=list(tokens))


@pytest.mark.parametrize(
    ("mine", "theirs", "at", "ended", "margin"),
    [
        ([0, 1, 2], [0, 1, 2], None, False, None),
        ([0, 1, 2], [0, 1], 2, False, None),
        ([0, 1, 2], [], 0, False, None),
        ([0, 1], [0, 1, 2], 2, False, None),
        ([0, END, 2], [0], 1, True, None),
        ([0, END, 2], [0, 2, 2], 1, True, 2.0),
        ([0, 1, 2], [0, 2, 2], 1, False, 2.0),
        ([0, 0, 2], [0, 1, 2], 1, False, 1e-5),
    ],
)
def test_an_answer_of_llama_cpp_that_is_short_or_different_is_not_equal(
    benchmark: Any, model: Any, mine: list[int], theirs: list[int], at: int | None, ended: bool, margin: float | None
) -> None:
    result = benchmark("llama_cpp").compared(model, GenerateOptions(), generated(*mine), theirs)
    assert (result["diverges_at"], result["ended"]) == (at, ended)
    assert result["margin"] == (None if margin is None else pytest.approx(margin, rel=0.1))


def test_other_tokens_than_those_of_plain_decoding_are_recorded(benchmark: Any, model: Any) -> None:
    plain = [generated(0, 1, 2), generated(0, 1, 2), generated(2, 0, 0)]
    results = [generated(0, 1, 2), generated(0, 2, 2), generated(2, 1, 0)]
    found = benchmark("decode").divergences(model, GenerateOptions(), results, plain)
    assert [(each["prompt"], each["position"], each["near_tie"]) for each in found] == [(1, 1, False), (2, 1, True)]


def test_the_few_row_benchmark_prints_fractions_of_a_rate(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["few_row_matmul.py", "--outputs", "64", "--inputs", "32", "--repetitions", "1"])
    benchmark("few_row_matmul").main()
    _, limit, _, *rows = capsys.readouterr().out.splitlines()
    assert "GB/s" in limit
    assert [row.split()[0] for row in rows] == ["1", "2", "4", "6", "8", "16"]
    assert all(float(fraction) >= 0 for row in rows for fraction in row.split()[1:])


def test_a_setting_names_weights_and_caches(benchmark: Any) -> None:
    quality = benchmark("quality")
    settings = [quality.Setting.parse(text) for text in ("q4_k_m", "f32+turbo3", "Q8_0+q8_0/turbo4")]
    assert [str(setting) for setting in settings] == ["Q4_K_M+f32", "F32+turbo3", "Q8_0+q8_0/turbo4"]
    for wrong in ("Q9_0", "Q4_0+q9_0", ""):
        with pytest.raises(ValueError, match="known are"):
            quality.Setting.parse(wrong)


def test_shares_tell_of_matrices_that_get_another_type(benchmark: Any, tmp_path: Path) -> None:
    """Rows of 640 values are no super-blocks of 256."""
    shares = {
        kind: benchmark("quality").shares(
            prepare(bundled_model(), tmp_path / "x.gguf", FAMILIES, QuantizeOptions(kind, pure=True))
        )
        for kind in ("Q4_0", "Q4_K")
    }
    down = 7 * 640 * 256 / 6.47e6  # of six layers and of the head
    assert shares["Q4_0"] == {"Q4_0": 1.0}
    assert shares["Q4_K"] == pytest.approx({"Q4_K": 1 - down, "Q5_0": down}, abs=1e-3)


def test_predictions_are_compared_window_by_window(benchmark: Any) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    got, exact = np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))
    tokens = rng.integers(0, 5, (3, 4))
    loss, change, divergence, same = np.asarray(benchmark("quality").compare(tokens, got, exact))
    for row in range(3):
        steps = [(got[row, t], exact[row, t], tokens[row, t + 1]) for t in range(3)]
        assert loss[row] == pytest.approx(np.mean([-p[token] for p, _, token in steps]), rel=1e-5)
        assert change[row] == pytest.approx(np.mean([q[token] - p[token] for p, q, token in steps]), rel=1e-4)
        assert divergence[row] == pytest.approx(np.mean([np.exp(q) @ (q - p) for p, q, _ in steps]), rel=1e-4)
        assert same[row] == pytest.approx(np.mean([p.argmax() == q.argmax() for p, q, _ in steps]))


def test_the_error_of_a_mean_is_that_of_its_samples(benchmark: Any) -> None:
    estimate = benchmark("quality").Estimate
    assert estimate.over(np.array([1.0, 2, 3])) == estimate(2, pytest.approx(1 / np.sqrt(3)))
    tokens, rounds = np.array([[30, 30, 30], [10, 15, 12]])
    tau = estimate.of_ratio(tokens, rounds)
    left_out = [np.delete(tokens, i).sum() / np.delete(rounds, i).sum() for i in range(3)]
    assert tau.mean == pytest.approx(90 / 37)
    assert tau.error == pytest.approx(np.sqrt(2 / 3 * np.square(left_out - np.mean(left_out)).sum()), rel=0.1)


@pytest.mark.slow
def test_the_quality_of_a_setting(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "quality.json"
    sizes = ["--windows", "2", "--length", "64", "--max-tokens", "8", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["quality.py", "F32", "Q4_0+turbo2", *sizes])
    assert benchmark("quality").main() == 0
    original, coarse = json.loads(out.read_text())["settings"]
    assert original["divergence"]["mean"] == 0
    assert coarse["divergence"]["mean"] > 1e-3
    assert (coarse["weight_bits"], coarse["kv_bits"]) == (4.5, 2.25)
    assert "14 of 14" in capsys.readouterr().out


def test_tokens_that_part_are_explained_by_errors_as_large_elsewhere(benchmark: Any) -> None:
    quantized = benchmark("llama_cpp_quantized")
    candidates = [_candidates({0: -0.5, 1: -0.6, 2: -3}), _candidates({1: -0.5, 0: -0.6})]
    found = [quantized._answer([7], {"tokens": [0, 1], "completion_probabilities": candidates})] * 4
    assert found[0].leads == pytest.approx([0.1, 0.1])
    here = np.array([[0.3, 0.2, 0, 0], [0.2, 0.15, 0, 0]])
    logits = [here] * 4
    assert quantized.leads_of(found, logits) == pytest.approx([0.1, -0.05] * 4)
    parted = quantized.partings(found, [[0, 1], [0, 0], [2, 1], [0, END]], logits, logits, limit=0.2, ends={END})
    assert [(each.prompt, each.position, each.explained) for each in parted] == [(1, 1, True), (2, 0, False)]
    assert parted[0].their_lead == pytest.approx(-0.1)
    assert parted[0].our_lead == pytest.approx(0.05)


def _candidates(probabilities: dict[int, float]) -> dict[str, Any]:
    return {"top_logprobs": [{"id": token, "logprob": value} for token, value in probabilities.items()]}


@pytest.mark.slow
def test_the_benchmark_of_decoding_runs_and_counts(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, prompts = tmp_path / "figures.json", tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "def add(a, b):"}) + "\n")
    arguments = ["--prompts", prompts, "--max-tokens", "12", "--drafts", "2", "--turns", "1", "--out", out]
    monkeypatch.setattr(sys, "argv", ["decode.py", *map(str, arguments)])
    assert benchmark("decode").main() == 0
    plain, drafted = json.loads(out.read_text())["figures"]
    assert (plain["K"], plain["tau"], plain["speedup"]) == (0, 1, 1)
    assert drafted["K"] == len(drafted["accepted_by_position"]) == 2
    assert drafted["tau"] > 1
    assert "K = 2: accepted by position" in capsys.readouterr().out


@pytest.mark.slow
def test_the_benchmark_of_drafters_counts_for_each_of_them(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["drafters.py", "--draft", "2", "--max-tokens", "12", "--prompts", "2"])
    benchmark("drafters").main()
    said = capsys.readouterr().out
    assert all(word in said for word in ("prompts", "repeated", "ngram + mtp", "% n-grams)"))


def test_the_benchmark_of_drafters_has_a_dash_where_there_were_no_rounds(benchmark: Any) -> None:
    model = SimpleNamespace(generate_batch=lambda prompts, options: [SimpleNamespace(stats=DecodeStats())])
    assert benchmark("drafters").cell(model, ["x"], GenerateOptions(max_tokens=1)) == "-"


@pytest.mark.slow
def test_the_benchmark_of_rules_compares_them_all(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--draft", "2", "--temperature", "1", "--max-tokens", "6", "--prompts", "1", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", ["acceptance_rules.py", *sizes])
    benchmark("acceptance_rules").main()
    said = capsys.readouterr().out
    assert all(rule in said for rule in ("rejection", "block", "coupled"))


@pytest.mark.slow
def test_the_benchmark_of_structured_output_has_a_row_for_each_schema(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--parts", "tables", "masks", "--vocab", "700", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["structured_output.py", *sizes])
    benchmark("structured_output").main()
    said = capsys.readouterr().out
    assert all(word in said for word in ("40 fields", "10 optional fields", "any JSON", "places R"))


@pytest.mark.slow
def test_the_benchmark_of_draft_vocabularies_has_a_row_for_each_size(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--vocab", "4096", "--layers", "4", "--sizes", "512", "--drafts", "2", "--turns", "1"]
    monkeypatch.setattr(sys, "argv", ["draft_vocabulary.py", *sizes])
    benchmark("draft_vocabulary").main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["4096", "512", "16"]
    assert [float(row[1]) for row in rows] == [pytest.approx(size * 1088 / 1e6, abs=0.06) for size in (4096, 512, 16)]
    assert (rows[0][6], float(rows[2][3])) == ("1.000", 0)


def test_traffic_counts_turns_of_loops_and_the_branch_that_sends_most(benchmark: Any) -> None:
    """Four devices: of what is added up a ring sends 6 / 4 of the bytes, of what is gathered 3 / 4."""
    traffic = benchmark("mesh_traffic")

    def body(x: jax.Array) -> jax.Array:
        x = jax.lax.scan(lambda carry, _: (jax.lax.psum(carry, "model"), None), x, None, length=3)[0]
        more = jax.lax.cond(x[0] > 0, lambda: jax.lax.all_gather(x, "model"), lambda: jnp.zeros((4, *x.shape)))
        return jax.lax.psum(more[0], "rows")

    mesh = without_devices((1, 4))
    run = jax.shard_map(body, mesh=mesh, in_specs=P("model"), out_specs=P("model"), check_vma=False)
    traced = jax.jit(run).trace(jax.ShapeDtypeStruct((16,), jnp.float32, sharding=NamedSharding(mesh, P("model"))))
    found = traffic.traffic_of(traced.jaxpr.jaxpr, dict(mesh.shape))
    assert (found.count, found.sent) == (4, 3 * 16 * 6 / 4 + 64 * 3 / 4)


def test_a_listing_of_a_released_model_has_the_bytes_of_its_file(benchmark: Any) -> None:
    """Qwen3.6-27B in Q8_0: 34 bytes for 32 values."""
    released = benchmark("released_models")
    listed = released.opened(released.QWEN36_27B, "Q8_0").opened.source.tensors.values()
    packed = [each for each in listed if each.type == "Q8_0"]
    assert sum(each.num_bytes for each in packed) == sum(math.prod(each.shape) for each in packed) * 34 // 32
    assert sum(math.prod(each.shape) for each in listed) / 1e9 == pytest.approx(27.3, rel=0.005)


THUNKS = """\
000: kCopy [source | sink] kCopy
001: kWhile         [prev=000 (1) | sink]
condition:
    002: kCustomKernel [source | sink] and_fusion grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | next=005 (1)]
        003: kCustomKernel [source | sink] loop_fusion grid: [1, 1, 1]
        004: kCopy         [source | sink] kCopy
    005: kCustomCall    [prev=000 (1) | next=008 (1)] kCustomCall
    008: kConditional   [prev=005 (1) | next=009 (1)]
      false_branch:
        006: kCustomKernel [source | sink] fusion grid: [1, 1, 1]
        007: kDynamicSliceFusion [source | sink] params=7, results=1
            010: kCustomCall [source | sink] kCustomCall
      true_branch:
        011: kCustomKernel [source | sink] fusion_1 grid: [1, 1, 1]
    009: kWhile         [prev=008 (1) | sink]
condition:
        012: kCustomKernel [source | sink] lt_fusion grid: [1, 1, 1]
      body:
        013: kCustomKernel [source | sink] fusion_2 grid: [1, 1, 1]
        014: kCustomCall [source | sink] kCustomCall
"""
"""As XLA writes what a program runs."""


def test_launches_of_a_round_are_counted_through_loops_branches_and_graphs(benchmark: Any) -> None:
    launches = benchmark("gpu_launches")
    turns = 2
    own = launches.round_in(launches.read(THUNKS), turns)
    counts = [
        launches.total(own, value, turns)
        for value in (launches.on_device, launches.by_host, launches.pallas, launches.graphs)
    ]
    assert counts == [1 + 2 + 1 + 2 + turns * 3, 1 + 1 + 1 + 2 + turns * 3, 1 + 1 + turns, 1]
    assert launches.waits_of(own, turns) == 1 + 1 + turns


@pytest.mark.slow
def test_the_benchmark_of_split_models_compares_one_device_with_two(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mesh_overhead.py", "--batch", "1", "--turns", "1"])
    benchmark("mesh_overhead").main()
    batch, one, two, ratio, *_ = map(float, capsys.readouterr().out.splitlines()[-1].split())
    assert batch == 1
    assert two / one == pytest.approx(ratio, rel=0.05)


@pytest.mark.slow
def test_models_that_are_split_are_counted_by_shapes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the devices hold twice as much, but for what is filled up to whole blocks."""
    step = benchmark("compile_step")
    sizes = ["--target", "v5e", "--mesh", "1x4", "1x8", "--type", "Q4_K_M", "--kernels", "xla", "--shapes"]
    monkeypatch.setattr(sys, "argv", ["compile_step.py", *sizes])
    step.main()
    *_, four, eight = capsys.readouterr().out.splitlines()
    assert float(four.split()[-3]) == pytest.approx(4.07, abs=0.01)
    assert float(eight.split()[-3]) == pytest.approx(2.14, abs=0.01)


@pytest.mark.slow
def test_the_load_of_a_server_is_answered_as_alone(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, prompts = tmp_path / "load.json", tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("def f(", "import ", "class A:")))
    sizes = ["--clients", "4", "--seconds", "5", "--seats", "2", "--slots", "256", "--draft", "2"]
    monkeypatch.setattr(sys, "argv", ["serve_load.py", *sizes, "--prompts", str(prompts), "--out", str(out)])
    benchmark("serve_load").main()  # memory needs longer to be flat
    figures = json.loads(out.read_text())
    assert figures["requests"] > 0
    assert figures["errors"] == {}
    assert figures["different"] == figures["near_ties"]
    assert "memory_growth" in capsys.readouterr().out
