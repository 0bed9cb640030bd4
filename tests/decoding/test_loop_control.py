"""What ends a sequence and what shortens a draft: neither changes the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, HEAD, Run, ScriptedMTP, feed, ragged_prompts, run, script
from tiny_models import DENSE, make_params, relative_rms

from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import DraftConfig
from specjax.decoding.stats import DecodeStats
from specjax.models.qwen3_5 import Qwen35Target
from specjax.state import RollbackStrategy

DRAFTS = 3
BATCH = 8
MAX_TOKENS = 36
SKIPPING = DraftConfig(n_max=DRAFTS, skip_streak=2)
PROMPTS = ragged_prompts(DENSE, (1, 3, 9, 20, 31, 40, 55, 64), seed=18)  # without near-ties, see `plain`


def make_decoder(drafts: int = DRAFTS, **changes: Any) -> Decoder:
    """With the rule and the batch of `ragged`, so that both have the same programs."""
    drafter = ScriptedMTP(DENSE) if drafts else None
    settings: dict[str, Any] = {"rule": "greedy", "margins": True} | changes
    return Decoder(Qwen35Target(DENSE), drafter, max_drafts=drafts, **settings)


@cache
def plain() -> Run:
    result = run(make_decoder(0), make_params(DENSE), PROMPTS, MAX_TOKENS)
    assert result.rounds.margin is not None
    assert result.rounds.margin[:, :, 0].min() > 5e-4, "near-ties: equality would hang on rounding"
    return result


def speculate(decoder: Decoder, correct: np.ndarray | int, budgets: int | Sequence[int], **settings: Any) -> Run:
    """A run whose drafts are right `correct` times a round."""
    return run(decoder, script(make_params(DENSE), PROMPTS, plain().tokens, correct), PROMPTS, budgets, **settings)


def mixed(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, DRAFTS + 1, (BATCH, CAPACITY))


def ends() -> tuple[int, ...]:
    """Two tokens that end most of the continuations, at various places."""
    first_at = {
        token: [row.index(token) for row in plain().tokens if token in row] for token in range(DENSE.vocab_size)
    }
    usual = sorted(first_at, key=lambda token: (-len(set(first_at[token])), token))
    return tuple(sorted(usual[:2]))


def truncated(budgets: int | Sequence[int] = MAX_TOKENS) -> list[list[int]]:
    """What plain decoding emits until an end token or the budget."""
    expected = []
    for row, budget in zip(plain().tokens, np.broadcast_to(budgets, BATCH), strict=True):
        stop = next((index for index, token in enumerate(row) if token in ends()), len(row))
        expected.append(row[: min(stop + 1, budget)])
    return expected


def assert_committed_to_the_last_token(result: Run, decoder: Decoder) -> None:
    """The state holds all emitted tokens but the last, which has not been fed, and nothing of the drafts after it."""
    seen = [prompt + tokens[:-1] for prompt, tokens in zip(PROMPTS, result.tokens, strict=True)]
    got, (want, _) = result.state.sequences, feed(decoder, result_params(), seen)
    np.testing.assert_array_equal(got.length, [len(tokens) for tokens in seen])
    assert relative_rms(got.layers[0].matrix_state(), want.layers[0].matrix_state()) < 1e-5
    assert relative_rms(got.layers[0].conv_window(), want.layers[0].conv_window()) < 1e-5
    below = np.arange(CAPACITY) < np.asarray(got.length)[:, None]
    assert relative_rms(np.asarray(got.layers[1].keys)[below], np.asarray(want.layers[1].keys)[below]) < 1e-5
    np.testing.assert_array_equal(result.state.pending, [tokens[-1] for tokens in result.tokens])
    assert not result.state.active.any()


def result_params() -> dict[str, Any]:
    """Parameters of the same structure as those of a scripted run, so that prefill is not compiled again."""
    return script(make_params(DENSE), PROMPTS, plain().tokens, 0)


def test_the_end_tokens_of_these_tests_end_rows_at_many_places() -> None:
    places = {len(row) for row in truncated()}
    assert len(places) >= 4
    assert min(places) < 8


@pytest.mark.parametrize("rollback", ["replay", pytest.param("snapshot", marks=pytest.mark.slow)])
def test_an_end_token_inside_a_draft_ends_its_row_there_and_no_other(rollback: RollbackStrategy) -> None:
    decoder = make_decoder(rollback=rollback)
    for correct in (HEAD, 0, DRAFTS, mixed()):
        result = speculate(decoder, correct, MAX_TOKENS, stop_tokens=ends())
        assert result.tokens == truncated()
        assert_committed_to_the_last_token(result, decoder)
    assert (result.rounds.n_accepted <= result.rounds.n_emitted).all()


def test_accepted_drafts_beyond_an_end_token_are_not_counted() -> None:
    result = speculate(make_decoder(), DRAFTS, MAX_TOKENS, stop_tokens=ends())
    emitted, accepted, drafted = (
        np.asarray(getattr(result.rounds, name)) for name in ("n_emitted", "n_accepted", "n_drafted")
    )
    # All drafts are right: a round emits one more token than it accepts, unless its last token is an accepted draft.
    cut_short = (emitted > 0) & (accepted == emitted)
    assert cut_short.any()
    np.testing.assert_array_equal(emitted[~cut_short & (emitted > 0)], drafted[~cut_short & (emitted > 0)] + 1)
    last = np.take_along_axis(np.asarray(result.rounds.tokens), np.maximum(emitted - 1, 0)[..., None], axis=2)[..., 0]
    assert np.isin(last[cut_short], ends()).all()


def test_each_row_stops_at_its_own_budget() -> None:
    budgets = [1, 2, 3, 4, 5, 9, MAX_TOKENS, 2]
    decoder = make_decoder()
    for correct in (0, DRAFTS, mixed(1)):
        result = speculate(decoder, correct, budgets, stop_tokens=ends())
        assert result.tokens == truncated(budgets)
        assert_committed_to_the_last_token(result, decoder)


def test_a_budget_beyond_the_caches_ends_where_they_do() -> None:
    result = speculate(make_decoder(), DRAFTS, 1000)
    for prompt, got, want in zip(PROMPTS, result.tokens, plain().tokens, strict=True):
        assert len(prompt) + len(got) == CAPACITY + 1  # the last token is not fed
        assert got[:MAX_TOKENS] == want[: len(got)]


def test_a_row_never_drafts_beyond_its_budget() -> None:
    budgets = np.array([1, 2, 3, 4, 5, 9, 12, 2])
    result = speculate(make_decoder(), DRAFTS, budgets.tolist(), stop_tokens=ends())
    left = budgets - 1
    for drafted, emitted in zip(result.rounds.n_drafted, result.rounds.n_emitted, strict=True):
        assert (drafted <= np.maximum(left - 1, 0)).all()
        left = left - emitted


def test_the_number_of_rounds_per_chunk_changes_nothing() -> None:
    decoder = make_decoder()
    results = [
        speculate(decoder, mixed(2), MAX_TOKENS, rounds_per_chunk=rounds, stop_tokens=ends()) for rounds in (8, 1)
    ]
    assert results[0].tokens == results[1].tokens == truncated()
    for field in ("n_emitted", "n_drafted", "n_accepted"):
        np.testing.assert_array_equal(*(getattr(result.rounds, field) for result in results))
    assert all(int(chunk.n_rounds) <= 1 for chunk in results[1].chunks)


def test_counts_of_a_run_add_up() -> None:
    result = speculate(make_decoder(), mixed(3), [4, MAX_TOKENS] * (BATCH // 2), stop_tokens=ends())
    whole, by_row = DecodeStats(), [DecodeStats() for _ in range(BATCH)]
    for chunk in result.chunks:
        whole.add(chunk)
        for row, stats in enumerate(by_row):
            stats.add(chunk, row)
    for row, stats in enumerate(by_row):
        assert stats.tokens == len(result.tokens[row]) - 1  # the first one comes from prefill
        assert stats.rounds == int((result.rounds.n_emitted[:, row] > 0).sum())
    unended = [stats for row, stats in enumerate(by_row) if result.tokens[row][-1] not in ends()]
    assert 0 < len(unended) < BATCH, "some rows must use up their budget, others must end"
    assert all(stats.tokens == stats.rounds + stats.accepted for stats in unended)
    for name in ("rounds", "tokens", "drafted", "accepted"):
        assert getattr(whole, name) == sum(getattr(stats, name) for stats in by_row)
    assert sum(whole.accepted_by_position) == whole.accepted
    assert sum(whole.drafted_by_position) == whole.drafted
    for positions in (whole.accepted_by_position, whole.drafted_by_position):
        assert positions == sorted(positions, reverse=True)
    assert whole.tokens_per_round == whole.tokens / whole.rounds
    assert whole.acceptance == whole.accepted / whole.drafted
    assert all(0 <= share <= 1 for share in whole.acceptance_by_position)


def test_rounds_without_drafts_name_no_drafter() -> None:
    result = speculate(make_decoder(), mixed(3), MAX_TOKENS, draft=SKIPPING)
    stats = DecodeStats()
    for chunk in result.chunks:
        drafted = np.asarray(chunk.rounds.n_drafted)
        assert (drafted == 0).any()
        stats.add(chunk.replace(rounds=chunk.rounds.replace(source=np.where(drafted == 0, 1, 0))))
    assert stats.drafted_by_drafter == [stats.drafted]
    assert stats.accepted_by_drafter == [stats.accepted]


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'couple'; known are 'coupled', 'rejection'"):
        make_decoder(rule="couple")


def test_a_streak_of_failures_skips_one_round_of_that_row() -> None:
    decoder = make_decoder()
    correct = np.broadcast_to(np.array([0, DRAFTS] * (BATCH // 2))[:, None], (BATCH, CAPACITY))
    result = speculate(decoder, correct, MAX_TOKENS, draft=SKIPPING)
    assert result.tokens == plain().tokens
    failing, succeeding = result.rounds.n_drafted[:, 0], result.rounds.n_drafted[:, 1]
    np.testing.assert_array_equal(failing[:9], [DRAFTS, DRAFTS, 0] * 3)
    np.testing.assert_array_equal(result.rounds.skipped[:9, 0], [False, False, True] * 3)
    assert (succeeding[result.rounds.n_emitted[:, 1] > 0][:-1] == DRAFTS).all()


def test_margins_are_those_of_plain_decoding() -> None:
    result = speculate(make_decoder(), mixed(4), MAX_TOKENS, draft=SKIPPING)
    for row in range(BATCH):
        got, want = (
            [value for n, margin in zip(r.n_emitted, r.margin, strict=True) for value in margin[row, : n[row]]]
            for r in (result.rounds, plain().rounds)
        )
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_ties_are_reported() -> None:
    """Tokens 2i and 2i + 1 have the same row in the output head, so that every choice is an exact tie."""
    decoder = make_decoder()
    head = np.repeat(np.asarray(make_params(DENSE)["target"]["lm_head"]["weight"])[::2], 2, axis=0)
    params = {**make_params(DENSE), "target": {**make_params(DENSE)["target"], "lm_head": {"weight": head}}}
    result = run(decoder, script(params, PROMPTS, plain().tokens, HEAD), PROMPTS, MAX_TOKENS, draft=SKIPPING)
    assert result.rounds.margin is not None
    assert result.rounds.margin[:, :, 0].max() == 0
    assert all(token % 2 == 0 for row in result.tokens for token in row), "argmax takes the lower of equal tokens"


def test_a_doubtful_head_drafts_less_and_changes_nothing() -> None:
    doubtful = DraftConfig(n_max=DRAFTS, n_min=2, p_min=0.15)
    result = speculate(make_decoder(), mixed(5), MAX_TOKENS, draft=doubtful)
    assert result.tokens == plain().tokens
    drafted = np.asarray(result.rounds.n_drafted)[result.rounds.n_emitted > 0]
    assert set(drafted) == {0, 2, 3}, "p_min of this test must stop drafts at every length"


def test_a_finished_state_runs_no_round() -> None:
    result = speculate(make_decoder(), 0, 1, stop_tokens=ends())
    assert result.rounds.n_emitted.shape[0] == 0
    assert [len(row) for row in result.tokens] == [1] * BATCH
    assert not jnp.any(result.state.active)
