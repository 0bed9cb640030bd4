"""Speculative decoding emits the tokens of plain decoding: for every draft length, accept count, rollback, batch."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from scripted import CAPACITY, HEAD, Run, ScriptedMTP, ragged_prompts, run, script
from tiny_models import DENSE, MOE, make_params, relative_rms

from specjax.decoding.decoder import Decoder
from specjax.decoding.draft_control import DraftConfig
from specjax.decoding.sampling import SamplerConfig
from specjax.models.qwen3_5 import Qwen35Config, Qwen35Target
from specjax.state import KVCache, RollbackStrategy, SequenceState

LENGTHS = (1, 2, 5, 17, 64, 65, 130, 300)
MAX_TOKENS = 36
WARM = SamplerConfig(temperature=0.7, top_k=20, top_p=0.95)
GREEDY = SamplerConfig()
PROMPT_SEED = {DENSE: 3, MOE: 4}  # chosen for continuations without near-ties, see `plain`
BATCH = tuple(range(len(LENGTHS)))
REVERSED = BATCH[::-1]


def decoder(
    config: Qwen35Config, drafts: int, sampler: SamplerConfig, rollback: RollbackStrategy = "replay"
) -> Decoder:
    return Decoder(
        target=Qwen35Target(config),
        drafter=ScriptedMTP(config) if drafts else None,
        sampler=sampler,
        rule="greedy" if sampler.greedy else "coupled",
        draft=DraftConfig(n_max=drafts),
        rollback=rollback,
        margins=True,
    )


def prompts(config: Qwen35Config) -> list[list[int]]:
    return ragged_prompts(config, LENGTHS, PROMPT_SEED[config])


@cache
def plain(config: Qwen35Config, sampler: SamplerConfig, rows: tuple[int, ...] = BATCH) -> Run:
    """Plain decoding of some of the prompts, each with the random stream of its index."""
    chosen = [prompts(config)[row] for row in rows]
    result = run(decoder(config, 0, sampler), make_params(config), chosen, MAX_TOKENS, sequence=rows)
    if sampler.greedy:
        assert result.rounds.margin is not None
        assert result.rounds.margin[:, :, 0].min() > 5e-4, "near-ties: equality would hang on rounding"
    return result


def correct_drafts(kind: str, drafts: int, rows: tuple[int, ...]) -> np.ndarray | int:
    """How many drafts are right in a round that starts at a position."""
    mixed = np.random.default_rng(drafts).integers(0, drafts + 1, (len(LENGTHS), CAPACITY))
    return {"head": HEAD, "none": 0, "all": drafts, "mixed": mixed[list(rows)]}[kind]


def speculate(
    config: Qwen35Config,
    drafts: int,
    sampler: SamplerConfig,
    rollback: RollbackStrategy,
    kind: str,
    rows: tuple[int, ...] = BATCH,
) -> Run:
    chosen = [prompts(config)[row] for row in rows]
    truth = [plain(config, sampler).tokens[row] for row in rows]
    params = script(make_params(config), chosen, truth, correct_drafts(kind, drafts, rows))
    return run(decoder(config, drafts, sampler, rollback), params, chosen, MAX_TOKENS, sequence=rows)


def assert_accepted_as_scripted(result: Run, kind: str, drafts: int, rows: tuple[int, ...]) -> None:
    correct = np.broadcast_to(correct_drafts(kind, drafts, rows), (len(rows), CAPACITY))
    length = np.array([LENGTHS[row] for row in rows])
    for emitted, drafted, accepted in zip(
        result.rounds.n_emitted, result.rounds.n_drafted, result.rounds.n_accepted, strict=True
    ):
        want = np.minimum(correct[np.arange(len(rows)), length], drafted)
        np.testing.assert_array_equal(accepted[emitted > 0], want[emitted > 0])
        length = length + emitted


def assert_same_committed(got: SequenceState, want: SequenceState) -> None:
    """Equality of the target's part to rounding; KV entries past the length mean nothing."""
    np.testing.assert_array_equal(got.length, want.length)
    below = np.arange(CAPACITY) < np.asarray(want.length)[:, None]
    for layer, reference in zip(got.layers, want.layers, strict=True):
        if isinstance(reference, KVCache):
            assert relative_rms(layer.k[below], reference.k[below]) < 1e-5
            assert relative_rms(layer.v[below], reference.v[below]) < 1e-5
        else:
            assert relative_rms(layer.matrix_state(), reference.matrix_state()) < 1e-5
            assert relative_rms(layer.conv_window(), reference.conv_window()) < 1e-5


CASES = [
    *((DENSE, drafts, rollback) for drafts, rollback in product((1, 2, 3, 5), ("replay", "snapshot"))),
    (MOE, 3, "replay"),
]


@pytest.mark.parametrize(("config", "drafts", "rollback"), CASES, ids=lambda x: getattr(x, "architecture", x))
def test_greedy_speculation_equals_plain_greedy(config: Qwen35Config, drafts: int, rollback: RollbackStrategy) -> None:
    want = plain(config, GREEDY)
    for kind in ("head", "none", "all", "mixed"):
        got = speculate(config, drafts, GREEDY, rollback, kind)
        assert got.tokens == want.tokens, kind
        assert_same_committed(got.state.sequences, want.state.sequences)
        if kind != "head":
            assert_accepted_as_scripted(got, kind, drafts, BATCH)
    assert set(got.rounds.n_accepted[got.rounds.n_drafted == drafts]) == set(range(drafts + 1))


@pytest.mark.parametrize(("drafts", "rollback"), [(1, "snapshot"), (2, "replay"), (3, "snapshot"), (5, "replay")])
def test_a_row_alone_decodes_as_in_the_batch(drafts: int, rollback: RollbackStrategy) -> None:
    want = plain(DENSE, GREEDY)
    for row in (4, 7):
        for kind in ("head", "all", "mixed"):
            got = speculate(DENSE, drafts, GREEDY, rollback, kind, (row,))
            assert got.tokens == [want.tokens[row]], (row, kind)


@pytest.mark.parametrize(("drafts", "rollback"), [(1, "snapshot"), (2, "replay"), (3, "replay"), (5, "snapshot")])
def test_coupled_sampling_equals_plain_sampling_with_the_same_seed(drafts: int, rollback: RollbackStrategy) -> None:
    want = plain(DENSE, WARM)
    for kind in ("head", "none", "all", "mixed"):
        got = speculate(DENSE, drafts, WARM, rollback, kind)
        assert got.tokens == want.tokens, kind
        assert_same_committed(got.state.sequences, want.state.sequences)
        if kind != "head":
            assert_accepted_as_scripted(got, kind, drafts, BATCH)


def test_coupled_sampling_does_not_depend_on_the_batch() -> None:
    want = plain(DENSE, WARM)
    backwards = speculate(DENSE, 3, WARM, "replay", "mixed", REVERSED)
    assert backwards.tokens == want.tokens[::-1]
    for row in (2, 5):
        assert speculate(DENSE, 3, WARM, "replay", "mixed", (row,)).tokens == [want.tokens[row]]
    assert plain(DENSE, WARM, REVERSED).tokens == want.tokens[::-1]
    assert plain(DENSE, WARM, (5,)).tokens == [want.tokens[5]]


def test_seeds_and_streams_change_the_draws() -> None:
    params, chosen = make_params(DENSE), prompts(DENSE)
    program = decoder(DENSE, 0, WARM)
    other_seed = run(program, params, chosen, MAX_TOKENS, seed=1)
    other_streams = run(program, params, chosen, MAX_TOKENS, sequence=[row + 100 for row in BATCH])
    for other in (other_seed, other_streams):
        assert all(got != want for got, want in zip(other.tokens, plain(DENSE, WARM).tokens, strict=True))
