"""The loop inside a user's own `jax.jit`, `jax.vmap` and `jax.lax.scan` says what the model says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import ragged_prompts
from small_model import CONFIG, agreeing_params
from wants import GREEDY

from specjax.decoding import ChunkRecord, Decoder, DecodeState, begin, decode_chunk, decode_round
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target

DRAFTS, BUDGET, ROUNDS = 2, 12, 11
PROMPTS = ragged_prompts(CONFIG, (3, 20), seed=5)
DECODER, BEST = (Decoder(Qwen35Target(CONFIG), Qwen35MTP(CONFIG), rule, DRAFTS) for rule in ("coupled", "greedy"))
ROWS = [Settings(SamplerConfig(0.8), DraftConfig(DRAFTS), seed=3), Settings(GREEDY, DraftConfig(1))]
SETTINGS = DECODER.settings(ROWS)
BEST_SETTINGS = BEST.settings([replace(row, sampler=GREEDY) for row in ROWS])


@cache
def params_of_small_model() -> Any:
    return agreeing_params(CONFIG)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    tokens = np.zeros((len(PROMPTS), lengths.max()), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    return tokens, lengths


def opened(params: Any, settings: Any = SETTINGS, decoder: Decoder = DECODER) -> tuple[DecodeState, ChunkRecord]:
    return begin(decoder, params, *arrays(), settings, jnp.full(len(PROMPTS), BUDGET, jnp.int32), slots=64)


def texts(*records: Any) -> list[list[int]]:
    """The tokens that each row emitted in these rounds [rounds, B, ...]."""
    rows: list[list[int]] = [[] for _ in PROMPTS]
    for rounds in records:
        for tokens, counts in zip(np.asarray(rounds.tokens), np.asarray(rounds.n_emitted), strict=True):
            for row, count in enumerate(counts):
                rows[row] += tokens[row, :count].tolist()
    return rows


@cache
def stepped(decoder: Decoder = DECODER) -> list[list[int]]:
    """The loop as the engine runs it: from the host, chunk by chunk."""
    params = params_of_small_model()
    state, first = opened(params, SETTINGS if decoder is DECODER else BEST_SETTINGS, decoder)
    state, chunk = decode_chunk(decoder, params, state, ROUNDS)
    assert not state.active.any()
    want = texts(first.rounds, jax.tree.map(lambda x: x[: int(chunk.n_rounds)], chunk.rounds))
    assert [len(row) for row in want] == [BUDGET, BUDGET]
    assert int(chunk.n_rounds) < BUDGET - 1  # some drafts were accepted
    return want


@pytest.mark.slow
def test_inside_jit() -> None:
    @jax.jit
    def generate(params: Any) -> tuple[ChunkRecord, ChunkRecord]:
        state, first = opened(params)
        return first, decode_chunk(DECODER, params, state, ROUNDS)[1]

    first, chunk = generate(params_of_small_model())
    assert texts(first.rounds, jax.tree.map(lambda x: x[: int(chunk.n_rounds)], chunk.rounds)) == stepped()


@partial(jax.jit, static_argnames="decoder")
def scanned(params: Any, settings: Any, decoder: Decoder = DECODER) -> tuple[ChunkRecord, Any]:
    state, first = opened(params, settings, decoder)

    def one_round(state: DecodeState, _: None) -> tuple[DecodeState, Any]:
        state, record, _ = decode_round(decoder, params, state)
        return state, record

    return first, jax.lax.scan(one_round, state, length=ROUNDS)[1]


@pytest.mark.parametrize(
    ("decoder", "settings"),
    [
        pytest.param(DECODER, SETTINGS, id="coupled", marks=pytest.mark.slow),
        pytest.param(BEST, BEST_SETTINGS, id="greedy"),
    ],
)
def test_inside_scan(decoder: Decoder, settings: Any) -> None:
    first, rounds = scanned(params_of_small_model(), settings, decoder)
    assert texts(first.rounds, rounds) == stepped(decoder)


@pytest.mark.slow
def test_inside_vmap() -> None:
    """Over seeds: each says what it says alone, the greedy row always the same."""
    params, seeds = params_of_small_model(), jnp.array([[3, 0], [7, 0], [8, 0]], jnp.uint32)
    first, rounds = jax.vmap(lambda seed: scanned(params, replace(SETTINGS, seed=seed)))(seeds)
    first, rounds = jax.device_get((first, rounds))
    got = [texts(*(jax.tree.map(itemgetter(seed), each) for each in (first.rounds, rounds))) for seed in range(3)]
    assert got[0] == stepped()
    assert got[0][0] != got[1][0] != got[2][0]
    assert got[0][1] == got[1][1] == got[2][1]
    alone = scanned(params, replace(SETTINGS, seed=seeds[1]))
    assert got[1] == texts(alone[0].rounds, alone[1])
