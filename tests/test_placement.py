"""Parameters lie where the rules say, programs find them there, and what they compute stays the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from wants import alike

import specjax
from checkpoints.mapping.reading import Given
from checkpoints.mapping.tree import flatten
from specjax.decoding.loop import decode_chunk
from specjax.decoding.new_state import idle_state
from specjax.decoding.seats import feed_rows
from specjax.runtime.placement import Placement, summary

FIXTURES = Path(__file__).parent / "fixtures"
HYBRID, QWEN3 = FIXTURES / "qwen3_5" / "dense" / "hf", FIXTURES / "dense" / "qwen3" / "hf"
GEMMA, ASSISTANT = FIXTURES / "gemma4" / "dense" / "hf", FIXTURES / "gemma4" / "dense" / "assistant"
HOST = "pinned_host"
PATHS = ("target.embed.weight", "target.layers_0.mlp.up_proj.weight", "mtp.layers_0.mlp.up_proj.weight")
PROMPT = np.random.default_rng(0).integers(5, 60, 12).tolist()
OPTIONS = specjax.GenerateOptions(max_tokens=24, draft=2, ignore_eos=True)


@pytest.fixture(scope="module")
def plain() -> specjax.Model:
    return specjax.load(HYBRID)


@pytest.fixture(scope="module")
def placed() -> specjax.Model:
    return specjax.load(HYBRID, place=[f"^mtp={HOST}"])


def in_host_memory(model: specjax.Model) -> set[str]:
    """Paths of the parameters whose arrays lie there."""
    return {path for path, array in flatten(model.params).items() if array.sharding.memory_kind == HOST}


def kinds(rules: Sequence[str]) -> list[str]:
    placement = Placement.parse(rules, PATHS)
    return [placement.put(path, Given(np.zeros(1))).sharding.memory_kind for path in PATHS]


def test_the_first_rule_that_matches_a_path_decides() -> None:
    assert kinds([]) == ["device"] * 3
    assert kinds([f"mlp={HOST}"]) == ["device", HOST, HOST]
    assert kinds([r"^mtp\.=device", f"mlp={HOST}"]) == ["device", HOST, "device"]
    assert kinds(["target=cpu:0", f"mlp=cpu:0/{HOST}"]) == ["device", "device", HOST]
    assert kinds([f"(?<=target).*mlp=cpu/{HOST}"]) == ["device", HOST, "device"]  # "=" in an expression


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["mtp"], "is not REGEX=PLACE"),
        (["=cpu:0"], "is not REGEX=PLACE"),
        (["(=cpu:0"], "no regular expression: missing"),
        (["mtp=cpu:99"], "no 'cpu:99'; devices are cpu:0, .*memories device, pinned_host"),
        (["mtp=gpu:0/device"], "no 'gpu:0/device'; devices are cpu:0"),
        (["mtp=hbm"], "no 'hbm'"),
        (["mtp=cpu:0/"], "no 'cpu:0/'"),
        (["mtp="], "is not REGEX=PLACE"),
        (["experts=cpu:0"], r"'experts=cpu:0' matches none of 3 parameters; there are .*mtp\.layers_0"),
        ([".=cpu:0", f"mtp={HOST}"], f"'mtp={HOST}' places nothing: earlier rules.* put it before them"),
    ],
)
def test_a_rule_that_places_nothing_is_refused(rules: list[str], message: str) -> None:
    with pytest.raises(specjax.SpecjaxError, match=message):
        Placement.parse(rules, PATHS)


def test_a_rule_is_checked_before_any_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoints.mapping.table.RuleTable.load", None)
    with pytest.raises(specjax.SpecjaxError, match="matches none"):
        specjax.load(GEMMA, drafter=ASSISTANT, place=["experts=cpu:0"])


def test_a_head_in_host_memory_drafts_the_same(plain: specjax.Model, placed: specjax.Model) -> None:
    assert in_host_memory(placed) == {path for path in flatten(placed.params) if path.startswith("mtp.")}
    assert not in_host_memory(plain)
    generation, expected = placed.generate(PROMPT, OPTIONS), plain.generate(PROMPT, OPTIONS)
    assert generation.tokens == expected.tokens
    assert generation.stats == expected.stats


def test_a_target_in_host_memory_computes_the_same(plain: specjax.Model) -> None:
    model = specjax.load(HYBRID, place=[f"target={HOST}"])
    np.testing.assert_array_equal(model.logits(PROMPT), plain.logits(PROMPT))


def test_an_assistants_tensors_are_told_from_the_targets_of_the_same_name() -> None:
    model = specjax.load(GEMMA, drafter=ASSISTANT, place=[rf"^mtp\..*q_proj={HOST}"])
    moved = in_host_memory(model)
    assert moved
    assert {path.replace("mtp.", "target.", 1) for path in moved} & flatten(model.params).keys()
    assert all(path.startswith("mtp.") and "q_proj" in path for path in moved)


def test_a_draft_models_tensors_begin_with_draft() -> None:
    model = specjax.load(QWEN3, drafter=QWEN3, place=[rf"^draft\.target={HOST}"])
    assert in_host_memory(model) == {path for path in flatten(model.params) if path.startswith("draft.target.")}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "drafter"), [(GEMMA, ASSISTANT), (QWEN3, QWEN3)], ids=["assistant", "draft model"])
def test_drafters_in_host_memory_draft_the_same(target: Path, drafter: Path) -> None:
    model = specjax.load(target, drafter=drafter, place=[f"^(mtp|draft)={HOST}"])
    expected = specjax.load(target, drafter=drafter).generate(PROMPT, OPTIONS)
    generation = model.generate(PROMPT, OPTIONS)
    assert (generation.tokens, generation.stats) == (expected.tokens, expected.stats)


def test_host_memory_is_read_within_the_loop(placed: specjax.Model) -> None:
    """Before it, all of it would lie in device memory while the loop runs."""
    decoder = placed.stream(PROMPT, OPTIONS).engine.decoder
    program = decode_chunk.trace(decoder, placed.params, idle_state(decoder, alike(1), 64), 2).jaxpr
    (loop,) = (equation for equation in program.eqns if equation.primitive.name == "while")
    spaces = [variable.aval.memory_space for variable in loop.invars]
    assert spaces.count(jax.memory.Space.Host) == len(in_host_memory(placed))


def test_placed_parameters_need_no_second_compilation(placed: specjax.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """All chunks of a prompt but the first begin from a state that has been through a program."""
    monkeypatch.setattr("specjax.runtime.pieces.PIECE_SIZES", (4,))
    before = feed_rows._cache_size(), decode_chunk._cache_size()
    placed.generate(PROMPT, OPTIONS, draft=1)
    assert (feed_rows._cache_size() - before[0], decode_chunk._cache_size() - before[1]) == (1, 1)


def test_the_summary_counts_parameters_where_they_lie() -> None:
    model = specjax.load(HYBRID, place=[rf"embed\.={HOST}"])
    flat = flatten(model.params)
    size = flat["target.embed.weight"].nbytes
    rest = sum(array.nbytes for array in flat.values()) - size
    expected = {
        f"1 parameter ({size / 1e6:.1f} MB) on cpu:0/{HOST}",
        f"{len(flat) - 1} parameters ({rest / 1e6:.1f} MB) on cpu:0",
    }
    assert set(summary(model.params).split(", ")) == expected


FOUR_DEVICES = """
import json, sys
import jax
import specjax
from specjax.evaluation import Evaluation, PromptLine

path, prompt = sys.argv[1], json.loads(sys.argv[2])
options = specjax.GenerateOptions(max_tokens=24, draft=2, ignore_eos=True)
found = {"errors": []}
for rules in (["^mtp=cpu:1"], ["mtp=pinned_host", ".=cpu:1"]):
    try:
        specjax.load(path, place=rules)
    except specjax.SpecjaxError as error:
        found["errors"].append(str(error))
model = specjax.load(path, place=["^mtp=cpu:1/pinned_host", ".=cpu:1"])
stream = model.stream(prompt, options)
for _ in stream.updates():
    pass
devices = lambda tree: sorted({leaf.device.id for leaf in jax.tree.leaves(tree)})
found["devices"] = [devices(model.params), devices(stream.engine.state)]
found["generate"] = stream.result.tokens
lines = [PromptLine(i, i, prompt[i:], {}, "") for i in range(2)]
found["eval"] = [result.tokens for result in Evaluation(model, lines, options, 1).run()]
reply, chat = model.session(options).generate(prompt)
found["session"] = [reply.tokens, chat.generate([*prompt, *reply.tokens, 7, 8])[0].tokens]
found["logits"] = model.logits(prompt).sum().item()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_model_can_run_on_another_device_than_the_first(plain: specjax.Model) -> None:
    environment = os.environ | {"XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", FOUR_DEVICES, str(HYBRID), json.dumps(PROMPT)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    for error in found["errors"]:
        assert "over 2 devices, and a program runs on one" in error
        assert "on cpu:0 (" in error
        assert "'.*=cpu:1'" in error
    assert found["devices"] == [[1], [1]]
    tokens = plain.generate(PROMPT, OPTIONS).tokens
    assert found["generate"] == tokens
    assert found["eval"] == [tokens, plain.generate(PROMPT[1:], OPTIONS).tokens]
    assert found["session"] == [tokens, plain.generate([*PROMPT, *tokens, 7, 8], OPTIONS).tokens]
    np.testing.assert_allclose(found["logits"], plain.logits(PROMPT).sum(), rtol=1e-5)
