"""Rounds of trained EAGLE-3, DFlash and DSpark drafters against those of llama.cpp, from the same files."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import pytest
from drafter_fixtures import FIXTURES, peer

import specjax
from specjax.runtime.options import GenerateOptions
from specjax.runtime.recording import TraceWriter

KINDS = ("eagle3", "dflash", "dspark")
PROMPT = 16


@cache
def rounds(kind: str, file: str) -> tuple[list[int], list[dict[str, Any]], list[dict[str, Any]]]:
    """The text, and what a trace says of each round: what was drafted, and what was accepted."""
    want = peer(f"{kind}/llama_cpp", "rounds")
    drafter = FIXTURES / kind / "llama_cpp" / file
    model = specjax.load(FIXTURES / "drafter_target" / "model.gguf", drafter=drafter, packed=None)
    prompt, count = want["tokens"][:PROMPT].tolist(), len(want["tokens"]) - PROMPT
    # More than llama.cpp made, so that no round is cut short by the limit.
    options = GenerateOptions(max_tokens=count + 16, draft=want["draft_tokens"].shape[1], ignore_eos=True)
    engine = model.engine([options], seats=1, slots=256)
    engine.submit(model.request(prompt, options))
    written = io.StringIO()
    writer, tokens = TraceWriter(written), list(prompt)
    for update in engine.run():
        writer.add(update)
        tokens += update.tokens
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    drafted, accepted = ([line for line in lines if line["evt"] == f"mtp_{name}"] for name in ("draft", "accept"))
    return tokens, drafted, accepted


@pytest.mark.parametrize("file", ["model.gguf", "hf"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_drafts_and_accepted_counts_equal_llama_cpps(kind: str, file: str) -> None:
    want = peer(f"{kind}/llama_cpp", "rounds")
    tokens, drafted, accepted = rounds(kind, file)
    count = len(want["accepted"])
    assert tokens[: len(want["tokens"])] == want["tokens"].tolist()
    assert len(drafted) >= count >= 24
    assert [line["id_last"] for line in drafted[:count]] == want["pending"][:count].tolist()
    assert [line["n_accepted"] for line in accepted[:count]] == want["accepted"][:count].tolist()
    assert [line["drafts"] for line in drafted[:count]] == want["draft_tokens"][:count].tolist()
    assert set(want["accepted"]) == set(range(want["draft_tokens"].shape[1] + 1)), "accepted counts from 0 to K"
