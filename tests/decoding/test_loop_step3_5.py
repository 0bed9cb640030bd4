"""Step-3.5 through the whole loop: rings that go round, chained heads, and as many drafts as there are heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, HEAD, Run, Scripted, feed, ragged_prompts, run, script
from tiny_models import relative_rms

import checkpoints
from specjax.decoding.decoder import Decoder
from specjax.decoding.shift import shift_context
from specjax.models.protocol import Params
from specjax.models.registry import FAMILIES
from specjax.models.step3_5 import Step35Config, Step35MTP, Step35Target
from specjax.state import KVCache, SequenceState

MODEL = Path(__file__).parents[1] / "fixtures" / "step3_5" / "flash" / "model.gguf"
LENGTHS = (1, 24, 65, 290)  # the last one is longer than the rings, which have a window of 24 and a chunk of 64
MAX_TOKENS = 48
BATCH = tuple(range(len(LENGTHS)))


@dataclass(frozen=True)
class ScriptedHeads(Scripted, Step35MTP):
    """The heads with scripted drafts."""


@cache
def model() -> tuple[Step35Config, Params]:
    checkpoint = checkpoints.load(MODEL, FAMILIES)
    return checkpoint.config, dict(checkpoint.params)


def prompts(rows: tuple[int, ...] = BATCH) -> list[list[int]]:
    every = ragged_prompts(model()[0], LENGTHS, seed=1)
    return [every[row] for row in rows]


def decoder(drafts: int) -> Decoder:
    config, _ = model()
    drafter = ScriptedHeads(config) if drafts else None
    return Decoder(Step35Target(config), drafter, "greedy", drafts, margins=True)


@cache
def plain() -> Run:
    result = run(decoder(0), model()[1], prompts(), MAX_TOKENS)
    assert result.rounds.margin is not None
    assert result.rounds.margin[:, :, 0].min() > 5e-4, "near-ties: equality would hang on rounding"
    return result


def correct_drafts(drafts: int) -> np.ndarray:
    """How many drafts of a round are right, by row and the position that it starts at; row 1 takes the heads' own."""
    correct = np.random.default_rng(drafts).integers(0, drafts + 1, (len(LENGTHS), CAPACITY))
    correct[1] = HEAD
    return correct


def speculate(drafts: int, rows: tuple[int, ...] = BATCH, said: list[list[int]] | None = None) -> Run:
    """By a script of what plain decoding says, or of what is known to have been said."""
    said = said or [plain().tokens[row] for row in rows]
    scripted = script(model()[1], prompts(rows), said, correct_drafts(drafts)[list(rows)])
    return run(decoder(drafts), scripted, prompts(rows), MAX_TOKENS, sequence=rows)


def committed(cache: KVCache, length: np.ndarray) -> list[np.ndarray]:
    """Keys and values of every position that a later token can still see."""
    positions = np.arange(CAPACITY)
    seen = positions < length[:, None]
    if cache.window is not None:
        seen &= positions >= length[:, None] - cache.window + 1
    rows, where = np.nonzero(seen)
    return [np.asarray(array)[rows, where % cache.capacity] for array in (cache.keys, cache.values)]


def assert_same_layers(got: tuple[KVCache, ...], want: tuple[KVCache, ...], length: np.ndarray) -> None:
    for ours, theirs in zip(got, want, strict=True):
        for a, b in zip(committed(ours, length), committed(theirs, length), strict=True):
            assert relative_rms(a, b) < 1e-5


@pytest.mark.slow  # trained models are held to it in `make test`
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_greedy_speculation_equals_plain_greedy(drafts: int) -> None:
    got, want = speculate(drafts), plain()
    assert got.tokens == want.tokens
    assert set(got.rounds.n_accepted[got.rounds.n_drafted == drafts]) == set(range(drafts + 1))
    length = np.asarray(want.state.sequences.length)
    np.testing.assert_array_equal(got.state.sequences.length, length)
    assert_same_layers(got.state.sequences.layers, want.state.sequences.layers, length)


@pytest.mark.slow
def test_a_row_alone_decodes_as_in_the_batch() -> None:
    for row in BATCH:
        assert speculate(3, (row,)).tokens == [plain().tokens[row]]


def test_after_any_rounds_every_head_has_been_fed_as_by_a_fresh_prefill() -> None:
    wrong = script(model()[1], prompts(), [[]] * len(BATCH), 0)  # the same program, so plain decoding needs none
    got = speculate(3, said=run(decoder(3), wrong, prompts(), MAX_TOKENS).tokens)
    assert set(got.rounds.n_accepted[got.rounds.n_drafted == 3]) == set(range(4))
    seen = [prompt + tokens[:-1] for prompt, tokens in zip(prompts(), got.tokens, strict=True)]
    fresh, _ = feed(decoder(3), wrong, seen)
    after: SequenceState = got.state.sequences
    np.testing.assert_array_equal(after.length, fresh.length)
    assert relative_rms(after.drafter.hidden[:, -1], fresh.drafter.hidden[:, -1]) < 1e-5
    fed = np.asarray(after.length - after.drafter.count + 1)  # the rows after these wait for the next round
    assert_same_layers(after.drafter.kv, fresh.drafter.kv, fed)


def test_a_shift_of_rows_that_drop_nothing_changes_no_bit() -> None:
    state, _ = feed(decoder(3), script(model()[1], prompts(), [[]] * len(BATCH), 0), prompts())
    before = jax.tree.map(np.array, state)
    after = shift_context(state, jnp.array([0, 5, 0, 9]), jnp.zeros(len(BATCH), jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_more_drafts_than_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="this drafter makes at most 3"):
        decoder(4)
