"""Rows with a bias and penalties say what these make of the model's logits, with drafts and without."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged import logits_of
from scripted import Run, feed, ragged_prompts, run, start
from test_loop_grammar import trimmed_head
from tiny_models import DENSE, make_params

from specjax.decoding.decoder import Decoder
from specjax.decoding.leaning import MOST_BIASES, Leaning, pairs_of
from specjax.decoding.loop import decode_chunk
from specjax.decoding.seats import start_rows
from specjax.decoding.settings import DraftConfig, RowSettings, SamplerConfig, Settings
from specjax.models.protocol import Drafter
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target

DRAFTS, MAX_TOKENS = 3, 24
PROMPTS = ragged_prompts(DENSE, (3, 1, 30, 20, 9, 12, 5, 17), seed=3)  # eight, as in `ragged`: the same programs
WARM = SamplerConfig(temperature=0.9, top_k=30)
BIAS = tuple((token, 2.0 if token % 3 else -100.0) for token in range(0, DENSE.vocab_size, 2))[:MOST_BIASES]
LEANINGS = (
    Leaning(bias=BIAS),
    Leaning(),
    Leaning(presence=1.5, frequency=0.5),
    Leaning(bias=BIAS[:7], frequency=2.0),
    Leaning(presence=-1.0),
    Leaning(),
    Leaning(bias=BIAS[3:9], presence=0.5),
    Leaning(),
)
SAMPLERS = (SamplerConfig(), SamplerConfig(), SamplerConfig(), WARM, WARM, WARM, WARM, WARM)
ROWS = [Settings(*pair, seed=5) for pair in zip(SAMPLERS, [DraftConfig(DRAFTS)] * len(SAMPLERS), strict=True)]
LEANING_ROWS = [replace(row, leaning=leaning) for row, leaning in zip(ROWS, LEANINGS, strict=True)]


def decoded(drafter: Drafter | None, params: dict | None, rows: list[Settings]) -> Run:
    decoder = Decoder(Qwen35Target(DENSE), drafter, "coupled", DRAFTS if drafter else 0, margins=True)
    rows = [replace(row, draft=DraftConfig(decoder.max_drafts)) for row in rows]
    return run(decoder, params or make_params(DENSE), PROMPTS, MAX_TOKENS, rows=rows)


@cache
def plain() -> Run:
    return decoded(None, None, LEANING_ROWS)


def logits_after_texts(result: Run) -> np.ndarray:
    """[B, S, V], by a pass over each whole text."""
    longest = max(map(len, PROMPTS)) + MAX_TOKENS
    text = np.zeros((len(PROMPTS), longest), np.int32)
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, result.tokens, strict=True)):
        text[row, : len(prompt) + len(tokens)] = [*prompt, *tokens]
    return np.asarray(logits_of(DENSE, make_params(DENSE), text))


def test_greedy_rows_take_the_largest_logit_after_bias_and_penalties() -> None:
    """Reckoned anew for every token: OpenAI's formula over what the text has said so far."""
    result = plain()
    assert result.rounds.margin is not None
    logits, changed = logits_after_texts(result), 0
    for row, (leaning, sampler) in enumerate(zip(LEANINGS, SAMPLERS, strict=True)):
        if not sampler.greedy:
            continue
        for place, token in enumerate(result.tokens[row]):
            own = logits[row, len(PROMPTS[row]) - 1 + place].astype(np.float64)
            best = own.argmax()
            for biased, value in leaning.bias:
                own[biased] += value
            for said in set(result.tokens[row][:place]):
                own[said] -= leaning.presence + leaning.frequency * result.tokens[row][:place].count(said)
            assert own.argmax() == token
            changed += best != token
    assert changed > MAX_TOKENS // 2


@pytest.mark.parametrize("drafter", [pytest.param("mtp", marks=pytest.mark.slow), "trimmed mtp"])
def test_drafts_change_no_token_of_rows_that_lean(drafter: str) -> None:
    head, params = (Qwen35MTP(DENSE), None) if drafter == "mtp" else trimmed_head()[1:]
    got = decoded(head, params, LEANING_ROWS)
    assert got.tokens == plain().tokens
    assert got.rounds.n_accepted.max() > 0
    counts = np.asarray(got.state.counts)
    for row, tokens in enumerate(got.tokens):
        np.testing.assert_array_equal(counts[row], np.bincount(tokens, minlength=DENSE.vocab_size))


def test_rows_that_do_not_lean_say_what_they_say_alone() -> None:
    """The program without bias and penalties says the same."""
    alone, beside = decoded(None, None, ROWS), plain()
    assert alone.state.counts is None
    for row, leaning in enumerate(LEANINGS):
        assert (alone.tokens[row] == beside.tokens[row]) == (not leaning)


def test_a_bias_on_the_drafter_has_more_drafts_accepted() -> None:
    """The chosen tokens are told to the drafter too: without that it would draft what is never said."""
    rows = [replace(row, leaning=Leaning(bias=((6, 100.0),))) for row in ROWS]
    result = decoded(*trimmed_head()[1:], rows)
    assert result.tokens == [[6] * MAX_TOKENS] * len(ROWS)
    assert result.rounds.n_accepted[0].tolist() == [DRAFTS] * len(ROWS)


def test_other_leanings_compile_nothing() -> None:
    of, params = Decoder(Qwen35Target(DENSE), None, "coupled", 0, margins=True), make_params(DENSE)
    state, logits = feed(of, params, PROMPTS)
    sizes = []
    for leanings in (LEANINGS, LEANINGS[::-1], [Leaning(((1, 1.0),))] * len(PROMPTS)):
        rows = [replace(row, draft=DraftConfig(0), leaning=each) for row, each in zip(ROWS, leanings, strict=True)]
        own = jax.tree.map(jnp.copy, state)
        begun, _ = start(of, own, logits, jnp.full(len(rows), 4), of.settings(rows), jnp.arange(len(rows)))
        decode_chunk(of, params, begun, 8)
        sizes.append((decode_chunk._cache_size(), start_rows._cache_size()))
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    ("leaning", "message"),
    [
        ({"bias": tuple((token, 1.0) for token in range(MOST_BIASES + 1))}, "has 301 tokens; give at most 300"),
        ({"bias": ((-1, 1.0),)}, "to token -1; give ids of at least 0"),
        ({"bias": ((1, float("inf")),)}, "adds inf to token 1"),
        ({"presence": float("nan")}, "presence_penalty is nan"),
    ],
)
def test_leanings_out_of_range_are_refused(leaning: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Leaning(**leaning)


def test_a_bias_of_a_token_that_does_not_exist_is_refused() -> None:
    wants = [Settings(draft=DraftConfig(0), leaning=Leaning(((DENSE.vocab_size, 1.0),)))]
    with pytest.raises(ValueError, match=f"logit_bias names token {DENSE.vocab_size}"):
        Decoder(Qwen35Target(DENSE), None, max_drafts=0).settings(wants)


def test_a_bias_is_a_value_however_it_is_written() -> None:
    assert pairs_of({"7": 1, 3: -2.5}) == pairs_of([(3, -2.5), [7, 1.0]]) == ((3, -2.5), (7, 1.0))
    for wrong in ({"a": 1}, {1.5: 1}, {1: "x"}, 3, [(1, 1), (1, 2)], {1: None}):
        with pytest.raises(TypeError, match="give a dict from ids of tokens to numbers"):
            pairs_of(wrong)


def test_every_leaning_is_an_entry_of_its_row() -> None:
    both_rows, alone = RowSettings.of(LEANING_ROWS[2:4]), RowSettings.of(LEANING_ROWS[3:4])
    jax.tree.map(lambda two, one: np.testing.assert_array_equal(two[1], one[0]), both_rows, alone)
