"""Drafters from files of their own in everyday use: sessions, batches, evaluation, the command line, places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drafter_fixtures import FIXTURES, TARGET
from test_session import said, talk

import specjax
from specjax.cli.main import main
from specjax.decoding.decoder import bytes_per_token

DRAFTERS = {"eagle3/specforge": 3, "dflash/specforge_sliding": 5}
HOST = "pinned_host"
BATCH = 5  # of all drafts that have one, and plain texts are alone, so that tests share programs


@pytest.fixture(
    scope="module", params=["eagle3/specforge", pytest.param("dflash/specforge_sliding", marks=pytest.mark.slow)]
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> specjax.Model:
    return specjax.load(TARGET, drafter=FIXTURES / name)


@pytest.mark.slow
def test_sessions_are_reused_saved_and_forked(model: specjax.Model, name: str, tmp_path: Path) -> None:
    """The turns give the tokens of turns that start from nothing, whatever the drafter waited with in between."""
    options = specjax.GenerateOptions(max_tokens=8, draft=DRAFTERS[name], ignore_eos=True)
    chat = talk(model, model.session(options, slots=256), 3, options)
    chat.save(tmp_path / "chat.npz")
    conversation = [*chat.tokens, *said(7)]
    want = model.generate(conversation, options).tokens
    again = model.load_session(tmp_path / "chat.npz")
    for each in (chat, again, chat):  # a session is a value: both branches start from the same state
        reply, _ = each.generate(conversation)
        assert reply.tokens == want


def test_context_shift_goes_on(model: specjax.Model, name: str) -> None:
    """After a shift the text is that of plain decoding over the same shifted caches."""
    said_so_far = said(0, 20)
    replies = []
    for draft in (0, DRAFTERS[name]):
        options = specjax.GenerateOptions(max_tokens=60, draft=draft, ignore_eos=True)
        _, chat = model.session(options, slots=256).generate(said_so_far)
        shorter = chat.shift(drop=24, keep=4)
        replies.append(shorter.generate([*shorter.tokens, *said(1)])[0].tokens)
    assert len(replies[0]) == 60
    assert replies[0] == replies[1]


def test_requests_that_come_and_go_share_a_batch(model: specjax.Model, name: str) -> None:
    prompts = [said(index, length) for index, length in enumerate((1, 30, 20, 5, 12)[:BATCH])]
    options = specjax.GenerateOptions(max_tokens=20, draft=DRAFTERS[name], ignore_eos=True)
    together = model.generate_batch(prompts, options)
    plain = [model.generate(prompt, options, draft=0) for prompt in prompts]
    assert [each.tokens for each in together] == [each.tokens for each in plain]


def test_the_command_line_takes_them(name: str, tmp_path: Path) -> None:
    prompts, results = tmp_path / "prompts.jsonl", {}
    prompts.write_text("".join(json.dumps({"id": row, "tokens": said(row)}) + "\n" for row in range(BATCH)))
    for draft, rows in ((0, 1), (DRAFTERS[name], BATCH)):
        out = tmp_path / f"{draft}.jsonl"
        files = ["--model", TARGET, "--drafter", FIXTURES / name, "--prompts", prompts, "--out", out]
        main([str(word) for word in ("eval", *files, "--max-tokens", 8, "--draft", draft, "--batch", rows)])
        lines = map(json.loads, out.read_text().splitlines())
        results[draft] = {line["id"]: line["tokens"] for line in lines}
    assert results[0] == results[DRAFTERS[name]]


def test_the_drafters_state_is_counted_and_its_parameters_can_be_placed(model: specjax.Model, name: str) -> None:
    without, with_drafts = (
        bytes_per_token(model.decoder(specjax.GenerateOptions(draft=draft))) for draft in (0, DRAFTERS[name])
    )
    heads, width = 2, 8
    assert with_drafts - without == 2 * 4 * heads * width  # one layer that is no ring
    part = name.split("/")[0]
    placed = specjax.load(TARGET, drafter=FIXTURES / name, place=[rf"^{part}\.={HOST}"])
    options = specjax.GenerateOptions(max_tokens=8, draft=DRAFTERS[name], ignore_eos=True)
    assert placed.generate(said(0), options).tokens == model.generate(said(0), options).tokens
    kinds = {leaf.sharding.memory_kind for leaf in placed.params[part]["layers_0"]["mlp"]["up_proj"].values()}
    assert kinds == {HOST}
