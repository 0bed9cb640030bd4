"""Rows of one running batch have settings of their own: one program, and each row says what it says alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged import logits_of
from scripted import Run, feed, ragged_prompts, run, start
from tiny_models import DENSE, make_params
from wants import GREEDY

from specjax.decoding.acceptance import RULES, Rule
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.record import RoundRecord
from specjax.decoding.round import draft
from specjax.decoding.seats import start_rows
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models.protocol import Params
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target

DRAFTS, MAX_TOKENS, TOP = 3, 16, 3
ROUNDS = 8  # of a chunk, as `run` has it
LENGTHS = (1, 4, 9, 17, 30, 2, 5, 11, 40, 3, 6, 8, 64, 7, 12, 20)
PROMPTS = ragged_prompts(DENSE, LENGTHS, seed=21)
SAMPLERS = [
    GREEDY,
    SamplerConfig(0.8),
    SamplerConfig(1.0, top_k=5),
    SamplerConfig(0.7, top_p=0.9),
    SamplerConfig(1.2, min_p=0.1),
    GREEDY,
    SamplerConfig(0.9, 20, 0.95, 0.02),
    SamplerConfig(1.5),
] * 2
ROWS = [
    Settings(
        sampler, DraftConfig(row % 4, skip_streak=row % 3), seed=row * 2**28, rule=("rejection", "block")[row // 8]
    )
    for row, sampler in enumerate(SAMPLERS)
]
GREEDY_DRAFTS = [Settings(draft=row.draft) for row in ROWS]
several_rules = pytest.mark.parametrize(
    "rule", ["coupled", "each", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("rejection", "block"))]
)
"""With "each", half of the rows have rejection and half of them block: one program for both."""
GREEDY_ROWS = [row for row, sampler in enumerate(SAMPLERS) if sampler.greedy]


def decoder(rule: Rule = "coupled", drafts: int = DRAFTS, logprobs: int | None = TOP) -> Decoder:
    return Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE), rule, drafts, margins=True, logprobs=logprobs)


@cache
def mixed(rule: Rule, drafts: int = DRAFTS) -> Run:
    rows = [replace(row, draft=replace(row.draft, n_max=min(row.draft.n_max, drafts))) for row in ROWS]
    return run(decoder(rule, drafts), make_params(DENSE), PROMPTS, MAX_TOKENS, rows=rows)


def started(of: Decoder, rows: list[Settings], params: Params | None = None) -> tuple[DecodeState, RoundRecord]:
    params = make_params(DENSE) if params is None else params
    state, logits = feed(of, params, PROMPTS[: len(rows)])
    budget, sequence = jnp.full(len(rows), MAX_TOKENS), jnp.arange(len(rows))
    return start(of, state, logits, budget, of.settings(rows), sequence)


def by_token(result: Run, values: Any, row: int) -> np.ndarray:
    """The entries of values [rounds, B, R, ...] that belong to the emitted tokens of a row."""
    return np.concatenate([each[row, :n] for each, n in zip(values, result.rounds.n_emitted[:, row], strict=True)])


def test_sixteen_settings_are_one_program_and_further_ones_compile_nothing() -> None:
    of, params = decoder(), make_params(DENSE)
    decode_chunk(of, params, started(of, ROWS)[0], ROUNDS)
    before = decode_chunk._cache_size(), start_rows._cache_size()
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    others = [
        Settings(SamplerConfig(0.1 + 0.1 * row, row, 1 - 0.01 * row, 0.01), DraftConfig(3 - row % 4), 5 + row, (row, 7))
        for row in range(len(ROWS))
    ]
    state = started(of, others)[0]
    compiled.clear()
    decode_chunk(of, params, state, ROUNDS)
    assert not compiled
    assert (decode_chunk._cache_size(), start_rows._cache_size()) == before


def test_coupled_rows_say_what_they_say_in_plain_decoding_and_beside_others() -> None:
    plain = mixed("coupled", 0)
    assert mixed("coupled").tokens == plain.tokens
    same = [ROWS[6]] * len(ROWS)
    alike = run(decoder(), make_params(DENSE), PROMPTS, MAX_TOKENS, rows=same)
    assert alike.tokens[6] == plain.tokens[6]
    assert len({tuple(tokens) for tokens in plain.tokens}) == len(ROWS)


@pytest.mark.slow
def test_greedy_rows_keep_their_tokens_beside_rows_that_draw() -> None:
    greedy = run(decoder(drafts=0), make_params(DENSE), PROMPTS, MAX_TOKENS, draft=DraftConfig(0))
    assert greedy.rounds.margin is not None
    assert greedy.rounds.margin[:, GREEDY_ROWS, 0].min() > 5e-4, "near-ties: equality would hang on rounding"
    alone = run(decoder("greedy"), make_params(DENSE), PROMPTS, MAX_TOKENS)
    assert alone.tokens == greedy.tokens, "the rule without any code for drawing"
    for rule in RULES:
        assert [mixed(rule).tokens[row] for row in GREEDY_ROWS] == [greedy.tokens[row] for row in GREEDY_ROWS]


@several_rules
def test_every_row_drafts_as_many_as_it_wants(rule: Rule) -> None:
    rounds = mixed(rule).rounds
    for row, wants in enumerate(ROWS):
        drafted, emitted = rounds.n_drafted[:, row], rounds.n_emitted[:, row]
        assert drafted.max() == wants.draft.n_max
        if wants.draft.n_max == 0:
            assert set(emitted) <= {0, 1}
        if not wants.draft.skip_streak:
            assert not rounds.skipped[:, row].any()


@pytest.mark.parametrize("most", [1, 2])
def test_drafting_ends_when_no_row_wants_more(most: int) -> None:
    """Seen by confidences: a draft that has not been made has 0."""
    of = decoder("greedy")
    rows = [replace(row, draft=DraftConfig(min(most, row.draft.n_max))) for row in GREEDY_DRAFTS]
    drafted = jax.jit(draft, static_argnums=0)  # the same program for all cases
    proposal, n_drafted = drafted(of, make_params(DENSE), started(of, rows)[0])
    assert proposal is not None
    assert (proposal.confidence[:, :most] > 0).all()
    assert not proposal.confidence[:, most:].any()
    np.testing.assert_array_equal(n_drafted, [row.draft.n_max for row in rows])


def test_every_row_ends_at_its_own_stop_tokens() -> None:
    endless = mixed("coupled").tokens
    stops = [(tokens[row % 8], tokens[12]) if row % 2 else () for row, tokens in enumerate(endless)]
    rows = [replace(wants, stop_tokens=stop) for wants, stop in zip(ROWS, stops, strict=True)]
    result = run(decoder(), make_params(DENSE), PROMPTS, MAX_TOKENS, rows=rows)
    for tokens, whole, stop in zip(result.tokens, endless, stops, strict=True):
        end = next((index for index, token in enumerate(whole) if token in stop), len(whole))
        assert tokens == whole[: end + 1]


@several_rules
def test_log_probabilities_are_those_of_the_raw_distribution(rule: Rule) -> None:
    """For any mix of rows: greedy ones, filtered ones, with drafts and without. The reference feeds the whole text."""
    result, longest = mixed(rule), max(LENGTHS) + MAX_TOKENS
    text = np.zeros((len(ROWS), longest), np.int32)
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, result.tokens, strict=True)):
        text[row, : len(prompt) + len(tokens)] = [*prompt, *tokens]
    want = np.asarray(jax.nn.log_softmax(logits_of(DENSE, make_params(DENSE), text), axis=-1))
    _, first = started(decoder(rule), ROWS)
    for row, prompt in enumerate(PROMPTS):
        tokens = result.tokens[row]
        reference = want[row, len(prompt) - 1 : len(prompt) - 1 + len(tokens)]
        logprob = np.append(first.logprob[row], by_token(result, result.rounds.logprob, row))
        np.testing.assert_allclose(logprob, reference[np.arange(len(tokens)), tokens], rtol=1e-4, atol=1e-4)
        best, named = (
            np.concatenate([of_first[row], by_token(result, rest, row)])
            for of_first, rest in zip(first.top_logprobs, result.rounds.top_logprobs, strict=True)
        )
        np.testing.assert_allclose(best, -np.sort(-reference)[:, :TOP], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(reference, named, axis=1), best, rtol=1e-4, atol=1e-4)


def test_only_what_is_asked_for_is_recorded() -> None:
    _, record = started(decoder("greedy", logprobs=None), GREEDY_DRAFTS)
    assert record.logprob is None
    assert record.top_logprobs is None
    _, record = started(decoder("greedy", logprobs=0), GREEDY_DRAFTS)
    assert record.logprob is not None
    assert record.top_logprobs is not None
    assert record.top_logprobs.tokens.shape == (len(ROWS), 1, 0)
    with pytest.raises(ValueError, match="logprobs is -1"):
        decoder(logprobs=-1)


def test_logits_that_are_no_numbers_are_reported_in_their_row_alone() -> None:
    """A token whose embedding is NaN: the row that has it in its prompt, and one that meets it while it decodes."""
    of, params = decoder(), make_params(DENSE)
    poison = PROMPTS[3][0]
    embed = np.array(params["target"]["embed"]["weight"])
    embed[poison] = np.nan
    poisoned = {**params, "target": {**params["target"], "embed": {"weight": embed}}}
    has = np.array([poison in prompt for prompt in PROMPTS])
    assert has.any()
    assert not has.all()
    state, first = started(of, ROWS, poisoned)
    np.testing.assert_array_equal(first.finite, ~has)
    state = state.replace(pending=state.pending.at[0].set(poison))
    _, chunk = decode_chunk(of, poisoned, state, ROUNDS)
    has[0] = True
    fed = np.concatenate([first.tokens, chunk.rounds.drafts[0]], axis=1)
    verified = np.arange(DRAFTS + 1) <= np.asarray(chunk.rounds.n_drafted[0])[:, None]
    has |= ((fed == poison) & verified).any(axis=1)
    np.testing.assert_array_equal(chunk.rounds.finite[0], ~has)


def test_every_array_of_a_state_has_the_batch_as_its_first_axis() -> None:
    """So that a row of one state can be put in place of a row of another."""
    state, record = started(decoder(), ROWS)
    assert {leaf.shape[0] for leaf in jax.tree.leaves((state, record))} == {len(ROWS)}


def test_a_batch_may_change_its_rule_between_rounds() -> None:
    """As when the last row that draws has left: one state serves every rule."""
    params, drawing = make_params(DENSE), decoder("coupled")
    begun = {of: started(of, GREEDY_DRAFTS)[0] for of in (decoder("greedy"), drawing)}
    half, _ = decode_chunk(decoder("greedy"), params, begun[decoder("greedy")], ROUNDS)
    want, _ = decode_chunk(decoder("greedy"), params, half, ROUNDS)
    state, _ = decode_chunk(drawing, params, begun[drawing], ROUNDS)
    assert state.active.any()
    got, _ = decode_chunk(decoder("greedy"), params, state, ROUNDS)
    np.testing.assert_array_equal(got.pending, want.pending)
    np.testing.assert_array_equal(got.sequences.length, want.sequences.length)


def test_a_state_takes_no_settings_with_it_when_it_is_consumed() -> None:
    of, params = decoder(), make_params(DENSE)
    settings, sequence = of.settings(ROWS), jnp.arange(len(ROWS))
    state, logits = feed(of, params, PROMPTS)
    begun, _ = start(of, state, logits, jnp.full(len(ROWS), 4), settings, sequence)
    decode_chunk(of, params, begun, ROUNDS)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((settings, sequence)))


def test_what_a_program_cannot_do_for_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="3 draft tokens are asked for; this program makes at most 2"):
        decoder(drafts=2).settings([Settings(draft=DraftConfig(3))])
    biased = Settings(SamplerConfig(1.0), DraftConfig(3, n_min=2, p_min=0.5))
    with pytest.raises(ValueError, match="bias rejection sampling"):
        decoder("rejection").settings([biased])
    decoder("coupled").settings([biased])
    decoder("rejection").settings([replace(biased, sampler=GREEDY)])
    decoder("greedy").settings([replace(biased, sampler=GREEDY)])
    with pytest.raises(ValueError, match=r"temperature is 1\.0, but this program draws nothing"):
        decoder("greedy").settings([biased])
    with pytest.raises(ValueError, match="max_drafts is -1"):
        decoder(drafts=-1)
