"""The least time of a round: what is counted, and what is compared with it or refused."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from specjax.runtime.loading import bundled_model
from specjax.state import KVTypes


def test_a_plain_round_reads_each_byte_of_a_dense_file_once(benchmark: Any) -> None:
    """Where matrices stay as a file has them; heads that draft are left out."""
    roofline = benchmark("roofline")
    models = roofline.models_named("bundled", "")
    plain = roofline.round_of(roofline.outlined(models, "metal", 0, KVTypes()), 1, 256)
    opened = models.opened
    own = {name for rule in opened.rules.rules if not rule.paths[0].startswith("mtp.") for name in rule.sources}
    others = {"caches", "recurrent states", "logits", "embedding rows"}
    read = sum(part.num_bytes for part in plain.parts if part.name not in others)
    assert read == sum(info.num_bytes for name, info in opened.source.tensors.items() if name in own)


def test_a_round_reads_the_head_once_for_each_draft(benchmark: Any) -> None:
    """And multiplies with all of the target's matrices as many rows as it verifies."""
    roofline = benchmark("roofline")
    models = roofline.models_named("bundled", "")
    drafts = 2
    parts = {
        (part.name, part.drafting): part
        for part in roofline.round_of(roofline.outlined(models, "metal", drafts, KVTypes()), 1, 256).parts
    }
    sizes, bytes_of = Counter(), Counter()
    for rule in models.opened.rules.rules:
        (path,) = rule.paths
        kind = "head" if "embed" in path else "mlp" if ".mlp." in path else None
        of_drafter = path.startswith("mtp.")
        sizes[kind, of_drafter] += math.prod(models.opened.rules.shapes[path])
        bytes_of[kind, of_drafter] += models.opened.source.tensors[rule.sources[0]].num_bytes
    mlp, head = parts["mlp", False], parts["output head", False]
    assert (mlp.num_bytes, mlp.operations) == (bytes_of["mlp", False], 2 * (drafts + 1) * sizes["mlp", False])
    assert (head.num_bytes, head.operations) == (bytes_of["head", False], 2 * (drafts + 1) * sizes["head", False])
    assert parts["mlp", True].num_bytes == drafts * bytes_of["mlp", True]
    assert parts["output head", True].num_bytes == drafts * bytes_of["head", False]
    assert parts["output head", True].operations == 2 * drafts * sizes["head", False]


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_experts_are_those_that_rows_reach_by_lot_in_the_half_of_a_round_that_asks_them(
    benchmark: Any, drafts: int
) -> None:
    """16 rows of 8 experts each are so many that the traced form multiplies blocks with padding."""
    roofline, released = benchmark("roofline"), benchmark("released_models")
    batch, layers = 16, 4
    small = replace(released.QWEN36_35B_A3B, layer_types=released.hybrid_layer_types(layers), vocab_size=512)
    model = roofline.outlined(released.opened(small, "BF16"), "metal", drafts, KVTypes())
    parts = {(part.name, part.drafting): part for part in roofline.round_of(model, batch, 64).parts}
    experts, chosen, values = 256, 8, 3 * 512 * 2048

    def reached(rows: int) -> float:
        return 2 * values * experts * (1 - (1 - chosen / experts) ** rows)

    verified = batch * (drafts + 1)
    assert parts["experts", False].num_bytes == pytest.approx(layers * reached(verified))
    assert parts["experts", False].operations == 2 * layers * verified * chosen * values
    assert (("experts", True) in parts) == bool(drafts)
    if drafts:
        passes = [verified, *[batch] * (drafts - 1)]
        assert parts["experts", True].num_bytes == pytest.approx(sum(map(reached, passes)))
        assert parts["experts", True].operations == 2 * sum(passes) * chosen * values
        assert parts["output head", True].num_bytes == drafts * parts["output head", False].num_bytes


MEASURED = {
    "dtype": "float32",
    "kv_type_k": "f32",
    "kv_type_v": "f32",
    "speeds": [
        {"draft": 0, "round": 0.5, "verify_per_round": 0.25, "draft_per_round": 0},
        {"draft": 2, "round": 0.5, "verify_per_round": 0.25, "draft_per_round": 0.125},
        {"draft": "auto", "round": 0.5, "verify_per_round": None, "draft_per_round": None},
    ],
}


def measured(path: Path, **changes: Any) -> Path:
    """What `specjax bench --json` writes of the bundled model, but for what is changed; None leaves it out."""
    document = {**MEASURED, "model": f"elsewhere/{bundled_model().name}", **changes}
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
    return path


def test_limits_are_compared_with_what_was_measured_in_its_types(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = measured(tmp_path / "bench.json")
    monkeypatch.setattr(sys, "argv", ["roofline.py", "bundled", "--context", "64", "--measured", str(path)])
    benchmark("roofline").main()
    said = capsys.readouterr().out
    assert "1 x 64 tokens, f32 caches, float32, greedy" in said
    assert [line.split()[:3] for line in said.splitlines() if "of the limit" in line] == [
        ["measured", "round", "500.000"],
        ["measured", "verify", "250.000"],
        ["measured", "round", "500.000"],
        ["measured", "verify", "250.000"],
        ["measured", "draft", "125.000"],
    ]


def test_matrices_that_are_not_packed_have_the_bytes_of_the_dtype(benchmark: Any) -> None:
    roofline, released = benchmark("roofline"), benchmark("released_models")
    models = released.opened(released.shape_of_27b(4), "BF16")
    rounds = [
        roofline.round_of(roofline.outlined(models, "gpu", 0, KVTypes(), dtype), 1, 64)
        for dtype in ("float32", "bfloat16")
    ]
    wide, narrow = ({part.name: part.num_bytes for part in each.parts} for each in rounds)
    assert wide["mlp"] == 2 * narrow["mlp"] == 4 * 4 * 3 * 5120 * 17408


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--draft", "0", "5"], "has no rounds of 5 drafts; --draft can be 0, 2"),
        ({"model": "other.gguf"}, [], "has measured other.gguf and not "),
        ({"kv_type_v": "q8_0"}, ["--kv-type", "f32"], "was measured with f32/q8_0; --kv-type is f32, leave it out"),
        ({}, ["--dtype", "bfloat16"], "was measured with float32; --dtype is bfloat16, leave it out"),
        ({"dtype": None}, [], "does not say with which dtype it was measured; give it by --dtype"),
        ({}, ["--batch", "2"], "has measured rounds of one sequence; --batch is 2"),
        ({"packed": "off"}, [], "was measured with --packed off, whose limits are not computed here"),
        ({"draft_vocab": "32768"}, [], "was measured with --draft-vocab, whose limits"),
        ({"speeds": None}, [], "has no speeds of a model; give what `specjax bench --json` has written"),
    ],
)
def test_limits_of_something_else_than_was_measured_are_refused(
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: dict[str, Any],
    options: list[str],
    message: str,
) -> None:
    path = measured(tmp_path / "bench.json", **changes)
    assert message in refusal(benchmark, monkeypatch, capsys, "bundled", "--measured", str(path), *options)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["Gemma-4-31B", "--draft", "3"], "3 draft tokens are asked for, but there is no drafter; use 0"),
        (["bundled", "--draft", "-1"], "max_drafts is -1; give 0 for plain decoding"),
        (["absent.gguf"], "absent.gguf"),
        (["Qwen3.6-27B", "--type", "Q9"], "'Q9' is no type; types that can be written are"),
        (["bundled", "--kv-type", "q9"], "argument --kv-type: invalid choice: 'q9'"),
        (["bundled", "--batch", "0"], "argument --batch: '0' is not a whole number from 1 on"),
        (["bundled", "--context", "0"], "argument --context: '0' is not a whole number from 1 on"),
        (["bundled", "--acceptance", "x"], "'x' is not a list of probabilities like 0.8,0.7,0.6"),
        (["bundled", "--acceptance", "0.8,0.7", "--draft", "3"], "--acceptance has 2 probabilities for 3 drafts"),
        (["bundled", "--measured", "absent.json"], "absent.json cannot be read"),
        (["bundled", "--device", "this", "--arithmetic", "bf16"], "no rate of bf16 is known for this; take f32"),
        (["bundled", "--device", "v5e", "--arithmetic", "f32"], "no rate of f32 is known for v5e; take bf16 or int8"),
    ],
    ids=str,
)
def test_a_limit_that_cannot_be_computed_is_refused_in_a_line(
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    message: str,
) -> None:
    assert message in refusal(benchmark, monkeypatch, capsys, *command)


def refusal(benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What roofline.py says as it ends with the status of a wrong command line."""
    monkeypatch.setattr(sys, "argv", ["roofline.py", *command])
    with pytest.raises(SystemExit) as ended:
        benchmark("roofline").main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "drafts"), [("Gemma-4-31B", [0]), ("Qwen3.6-27B", [0, 3]), ("Step-3.5-Flash", [0, 3])]
)
def test_by_default_rounds_have_what_the_drafter_makes(benchmark: Any, model: str, drafts: list[int]) -> None:
    roofline = benchmark("roofline")
    assert roofline.drafts_of(roofline.models_named(model, "Q8_0"), None) == drafts


def test_the_rates_of_this_device_are_labelled_as_what_was_multiplied(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    roofline = benchmark("roofline")
    monkeypatch.setattr(roofline, "memory_rate", lambda num_bytes: 1e9)
    rates = roofline.rates_of("this")
    assert (rates.memory, rates.bf16, roofline.arithmetic_of("this", None)) == (1e9, None, "f32")
    assert rates.f32 > 0
    assert roofline.arithmetic_of("h100", None) == "bf16"


def test_on_an_accelerator_the_rate_of_memory_is_that_of_copies_in_one_launch(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum that the host starts would be the time of a launch."""
    machine = benchmark("machine")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(machine, "best_seconds", lambda run, effort: float(run()[0]))  # ones, with one added each time
    assert machine.memory_rate(1 << 12) == 2 * 8 * (1 << 12) / 9
