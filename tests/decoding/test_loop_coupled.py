"""Coupled sampling emits the tokens of plain sampling with the same seed, whatever the drafts and the batch."""

from __future__ import annotations

import pytest
from ragged import (
    BATCH,
    MAX_TOKENS,
    REVERSED,
    WARM,
    assert_accepted_as_scripted,
    assert_same_committed,
    decoder,
    plain,
    prompts,
    speculate,
)
from scripted import run
from tiny_models import DENSE, make_params

from specjax.state import RollbackStrategy


@pytest.mark.parametrize(
    ("drafts", "rollback"),
    [
        pytest.param(1, "snapshot", marks=pytest.mark.slow),
        pytest.param(2, "replay", marks=pytest.mark.slow),
        (3, "replay"),
        pytest.param(5, "snapshot", marks=pytest.mark.slow),
    ],
)
def test_coupled_sampling_equals_plain_sampling_with_the_same_seed(drafts: int, rollback: RollbackStrategy) -> None:
    want = plain(DENSE, WARM)
    for seed in (0, 1):
        got = speculate(DENSE, drafts, WARM, rollback, seed=seed)
        assert got.tokens == want.tokens
        assert_same_committed(got.state.sequences, want.state.sequences)
        assert_accepted_as_scripted(got, drafts, seed)


def test_coupled_sampling_does_not_depend_on_the_batch() -> None:
    want = plain(DENSE, WARM)
    assert plain(DENSE, WARM, REVERSED).tokens == want.tokens[::-1]
    assert speculate(DENSE, 3, WARM, "replay", REVERSED).tokens == want.tokens[::-1]
    for row in (2, 5):
        assert plain(DENSE, WARM, (row,)).tokens == [want.tokens[row]]
        assert speculate(DENSE, 3, WARM, "snapshot", (row,)).tokens == [want.tokens[row]]


def test_seeds_and_streams_change_the_draws() -> None:
    params, chosen = make_params(DENSE), prompts(DENSE)
    program = decoder(DENSE, 0)
    other_seed = run(program, params, chosen, MAX_TOKENS, seed=1, sampler=WARM)
    other_streams = run(program, params, chosen, MAX_TOKENS, sequence=[row + 100 for row in BATCH], sampler=WARM)
    for other in (other_seed, other_streams):
        assert all(got != want for got, want in zip(other.tokens, plain(DENSE, WARM).tokens, strict=True))
