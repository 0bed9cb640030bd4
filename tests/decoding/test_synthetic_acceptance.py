"""Acceptance by lot: as probable as it was said, whatever the model says, and all else as in real decoding."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scripted import CAPACITY, Run, feed, ragged_prompts, run
from tiny_models import DENSE, make_params, relative_rms

from specjax import GenerateOptions
from specjax.decoding.acceptance import Synthetic
from specjax.decoding.decoder import Decoder
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target

DRAFTS, MAX_TOKENS = 3, 300
PROBABILITIES = (0.8, 0.7, 0.6)
PROMPTS = ragged_prompts(DENSE, (1, 3, 9, 20, 31, 40, 55, 64), seed=18)  # their continuations have no near-ties
ALWAYS = Synthetic((1.0,) * DRAFTS)


def decoder(rule: Synthetic | str, drafts: int = DRAFTS, **changes: Any) -> Decoder:
    return Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE) if drafts else None, rule=rule, max_drafts=drafts, **changes)


@cache
def decoded(rule: Synthetic, tokens: int = MAX_TOKENS, stop_tokens: tuple[int, ...] = ()) -> Run:
    return run(decoder(rule), make_params(DENSE), PROMPTS, tokens, stop_tokens=stop_tokens)


def full_rounds(result: Run) -> np.ndarray:
    """How many drafts were accepted in each round that had room for all."""
    return result.rounds.n_accepted[result.rounds.n_drafted == DRAFTS]


def test_drafts_stand_as_often_as_it_was_said() -> None:
    rule = Synthetic(PROBABILITIES)
    accepted = full_rounds(decoded(rule))
    assert len(accepted) > 700
    error = accepted.std() / np.sqrt(len(accepted))
    assert accepted.mean() == pytest.approx(rule.tokens_per_round(DRAFTS) - 1, abs=4 * error)
    assert rule.tokens_per_round(DRAFTS) == pytest.approx(1 + 0.8 + 0.8 * 0.7 + 0.8 * 0.7 * 0.6)
    for position, probability in enumerate(PROBABILITIES):
        reached = accepted[accepted >= position]
        error = np.sqrt(probability * (1 - probability) / len(reached))
        assert (reached > position).mean() == pytest.approx(probability, abs=4 * error)


def test_the_state_holds_what_was_emitted() -> None:
    """Rejected drafts leave no trace, accepted ones do: as if the text had been fed as a prompt."""
    result = decoded(Synthetic(PROBABILITIES))
    seen = [prompt + tokens[:-1] for prompt, tokens in zip(PROMPTS, result.tokens, strict=True)]
    got, (want, _) = result.state.sequences, feed(decoder(ALWAYS), make_params(DENSE), seen)
    np.testing.assert_array_equal(got.length, [len(tokens) for tokens in seen])
    assert max(got.length) < CAPACITY
    assert relative_rms(got.layers[0].matrix_state(), want.layers[0].matrix_state()) < 1e-4
    assert relative_rms(got.layers[0].conv_window(), want.layers[0].conv_window()) < 1e-4


def test_the_lots_are_those_of_the_seed() -> None:
    rule = Synthetic(PROBABILITIES)
    first, again, other = (
        run(decoder(rule), make_params(DENSE), PROMPTS, MAX_TOKENS, seed=seed).rounds.n_accepted for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:20], other[:20])


@pytest.mark.slow
def test_certain_drafts_all_stand_and_impossible_ones_never() -> None:
    everything, nothing = decoded(ALWAYS), decoded(Synthetic((0.0,) * DRAFTS), 24)
    np.testing.assert_array_equal(everything.rounds.n_accepted, everything.rounds.n_drafted)
    assert (full_rounds(everything) == DRAFTS).all()
    assert len(full_rounds(nothing)) > 100
    assert not nothing.rounds.n_accepted.any()
    assert nothing.tokens == run(decoder("coupled", drafts=0), make_params(DENSE), PROMPTS, 24).tokens


@pytest.mark.slow
def test_a_token_in_a_draft_can_end_the_text() -> None:
    """With every draft accepted, a round emits 3 drafts and a token of the target: end on those that are drafts."""
    endless = decoded(ALWAYS)
    ends = tuple({row[2] for row in endless.tokens})  # the first token is the prompt's; then the second draft
    result = decoded(ALWAYS, stop_tokens=ends)
    for row, (prompt, whole, tokens) in enumerate(zip(PROMPTS, endless.tokens, result.tokens, strict=True)):
        stop = next(index for index, token in enumerate(whole) if token in ends)
        assert tokens == whole[: stop + 1]
        assert result.state.sequences.length[row] == len(prompt) + stop
    stopped_in_a_draft = result.rounds.n_emitted[0] < result.rounds.n_drafted[0] + 1
    assert stopped_in_a_draft.any()


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [((), r"probabilities are \(\); give one from 0 to 1"), ((0.5, 1.5), "from 0 to 1"), ((float("nan"),), "from 0")],
)
def test_lots_need_probabilities(probabilities: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Synthetic(probabilities)


def test_every_draft_needs_a_probability() -> None:
    with pytest.raises(ValueError, match="3 draft tokens are asked for, but there are 2 probabilities"):
        decoder(Synthetic((0.5, 0.5)))


@pytest.mark.parametrize("accept", ["synthetic", Synthetic((0.5,))], ids=str)
def test_text_is_never_generated_by_lot(accept: Any) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(
            ValueError, match="draws lots and is for measuring speed: what comes out is no model's text"
        ):
            GenerateOptions(accept=accept, temperature=temperature)
