"""Commit keeps the accepted tokens in every part of the state, and leaves no trace of the others."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, cut, feed, ragged_prompts
from tiny_models import DENSE, make_params, relative_rms
from wants import drafting

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.record import RoundRecord
from specjax.models.protocol import Choice, Params, Proposal
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.state import KVCache, RollbackStrategy, SequenceState, commit

DRAFTS = 3
ROWS = DRAFTS + 1
# (tokens of the window that are valid, tokens that are kept): all of them, and a row that has no tokens at all.
CASES = [(0, 0)] + [(valid, kept) for valid in range(1, ROWS + 1) for kept in range(1, valid + 1)]
N_VALID, KEPT = np.array(CASES, np.int32).T
LENGTHS = (1, 2, 3, 4, 5, 17, 63, 64, 65, 100, 130)
FOLLOWING = 32
ROUNDS = 5  # of a chunk
STRATEGIES = ("replay", "snapshot")


def decoder(rollback: RollbackStrategy) -> Decoder:
    return Decoder(
        Qwen35Target(DENSE), Qwen35MTP(DENSE), max_drafts=DRAFTS, rollback=rollback,
        margins=True,
    )  # fmt: skip


PROMPTS = ragged_prompts(DENSE, LENGTHS, seed=1)
WINDOW = np.array(ragged_prompts(DENSE, [ROWS] * len(CASES), seed=2), np.int32)
NEXT = np.array(ragged_prompts(DENSE, [len(CASES)], seed=3)[0], np.int32)
ACCEPTED = [prompt + row[:n].tolist() for prompt, row, n in zip(PROMPTS, WINDOW, KEPT, strict=True)]


def greedy(logits: jax.Array, position: jax.Array, before: Any = None) -> Choice:
    del position, before
    return Choice(jnp.argmax(logits, axis=-1), None, jnp.ones(logits.shape[0]))


@partial(jax.jit, static_argnames=("drafts",))
def propose(params: Params, pending: jax.Array, state: SequenceState, drafts: int) -> Proposal:
    """What the head drafts, and its state with nothing waiting that the next round would feed."""
    return Qwen35MTP(DENSE).propose(
        params, pending, state, num_drafts=drafts, choose=greedy, keep_going=lambda c, made: c > 0
    )


@jax.jit
def play_round(
    params: Params, state: SequenceState, tokens: jax.Array, n_valid: jax.Array, n: jax.Array
) -> tuple[jax.Array, SequenceState]:
    """Draft, so that the head's cache holds what must not stay; verify other tokens; keep n of them."""
    head = Qwen35MTP(DENSE)
    proposal = propose(params, tokens[:, 0], state, DRAFTS)
    output, window = Qwen35Target(DENSE).verify(params, tokens, n_valid, state, request=head.request)
    assert output.logits is not None
    window = window.replace(drafter=head.observe(tokens, output.features, proposal.state))
    return output.logits, commit(window, n)


@cache
def before(rollback: RollbackStrategy) -> SequenceState:
    return feed(decoder(rollback), make_params(DENSE), PROMPTS)[0]


@cache
def committed(rollback: RollbackStrategy) -> SequenceState:
    return play_round(make_params(DENSE), before(rollback), WINDOW, N_VALID, KEPT)[1]


@cache
def fresh(rollback: RollbackStrategy) -> SequenceState:
    """A state that has only ever seen the accepted tokens."""
    return feed(decoder(rollback), make_params(DENSE), ACCEPTED)[0]


def parts(state: SequenceState, row: int) -> dict[str, Any]:
    """What a row's committed state says, part by part."""

    def own(values: jax.Array, length: int | None = None) -> np.ndarray:  # JAX would compile a slice of each length
        return np.asarray(values)[row, :length]

    length = int(state.length[row])
    said: dict[str, Any] = {}
    for index, layer in enumerate(state.layers):
        if isinstance(layer, KVCache):
            said |= {f"{index} keys": own(layer.keys, length), f"{index} values": own(layer.values, length)}
        else:
            said |= {f"{index} matrix": own(layer.matrix_state()), f"{index} conv": own(layer.conv_window())}
    count = int(state.drafter.count[row])
    fed = length - count + 1  # positions that the head has been fed for good
    return said | {"head keys": own(state.drafter.kv.keys, fed), "head values": own(state.drafter.kv.values, fed)}


@pytest.mark.parametrize("rollback", STRATEGIES)
@pytest.mark.parametrize("row", range(len(CASES)), ids=["{1}-of-{0}".format(*case) for case in CASES])
def test_state_after_commit_is_that_of_a_fresh_run(rollback: RollbackStrategy, row: int) -> None:
    got, want = committed(rollback), fresh(rollback)
    assert got.length[row] == len(ACCEPTED[row])
    reference = parts(want, row)
    for name, value in parts(got, row).items():
        assert relative_rms(value, reference[name][: len(value)]) < 1e-5, name


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_the_head_catches_up_with_the_targets_hidden_states(rollback: RollbackStrategy) -> None:
    """The waiting rows, fed with the next token, leave the head's cache as a fresh run does; its draft is the same."""
    params = make_params(DENSE)
    got, want = (propose(params, NEXT, state, DRAFTS) for state in (committed(rollback), fresh(rollback)))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    got_norm, want_norm = (Qwen35MTP(DENSE).hidden_norm(state(rollback).drafter) for state in (committed, fresh))
    np.testing.assert_allclose(got_norm, want_norm, rtol=1e-5)
    upto = np.arange(CAPACITY) <= np.asarray(committed(rollback).length)[:, None]
    assert relative_rms(got.state.kv.keys[upto], want.state.kv.keys[upto]) < 1e-5
    assert relative_rms(got.state.kv.values[upto], want.state.kv.values[upto]) < 1e-5


def continuation(rollback: RollbackStrategy, state: SequenceState) -> tuple[np.ndarray, np.ndarray]:
    """The next tokens of every row, decoded speculatively from a state and `NEXT`, and their margins."""
    zero = jnp.zeros((len(CASES),), jnp.int32)
    start = DecodeState(
        sequences=jax.tree.map(jnp.copy, state),
        pending=jnp.asarray(NEXT),
        budget=zero + FOLLOWING,
        streak=zero + 0,
        skip=zero > 0,
        sequence=zero + 1,
        settings=drafting(len(CASES), n_max=DRAFTS),
        dropped=zero + 0,
    )
    chunks: list[RoundRecord] = []
    for _ in range(-(-FOLLOWING // ROUNDS)):  # as many rounds as there are tokens, if no draft is right
        start, chunk = decode_chunk(decoder(rollback), make_params(DENSE), start, ROUNDS)
        chunks.append(cut(jax.device_get(chunk)))
    rounds = jax.tree.map(lambda *x: np.concatenate(x), *chunks)
    kept = np.arange(ROWS) < rounds.n_emitted[..., None]  # [rounds, B, R]
    return tuple(
        np.stack([x[:, row][kept[:, row]] for row in range(len(CASES))]) for x in (rounds.tokens, rounds.margin)
    )  # fmt: skip


# Tokens after rounds with snapshots are in tests/models/test_mtp_head.py as well.
@pytest.mark.parametrize("rollback", ["replay", pytest.param("snapshot", marks=pytest.mark.slow)])
def test_the_following_tokens_are_those_of_a_fresh_run(rollback: RollbackStrategy) -> None:
    got, margins = continuation(rollback, committed(rollback))
    want, _ = continuation(rollback, fresh(rollback))
    assert margins.min() > 5e-4, "near-ties: equality would hang on rounding"
    np.testing.assert_array_equal(got, want)
    if rollback == "snapshot":
        np.testing.assert_array_equal(got, continuation("replay", committed("replay"))[0])


def test_both_strategies_agree() -> None:
    replay, snapshot = committed("replay"), committed("snapshot")
    for row in range(len(CASES)):
        reference = parts(snapshot, row)
        for name, value in parts(replay, row).items():
            assert relative_rms(value, reference[name]) < 1e-5, name


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_a_row_without_tokens_keeps_all_of_its_state(rollback: RollbackStrategy) -> None:
    idle = CASES.index((0, 0))
    reference = parts(before(rollback), idle)
    for name, value in parts(committed(rollback), idle).items():
        np.testing.assert_allclose(value, reference[name], rtol=1e-5, atol=1e-6, err_msg=name)
    for name in ("hidden", "tokens", "count"):
        before_it, after_it = (getattr(state(rollback).drafter, name)[idle] for state in (before, committed))
        np.testing.assert_array_equal(after_it, before_it, err_msg=name)


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_a_second_commit_follows_on_the_first(rollback: RollbackStrategy) -> None:
    """Rows that were idle go on, and rows that went on are idle; the others keep another number of tokens."""
    params = make_params(DENSE)
    again = np.array(ragged_prompts(DENSE, [ROWS] * len(CASES), seed=4), np.int32)
    n_valid, kept = np.roll(N_VALID, 3), np.roll(KEPT, 3)
    _, state = play_round(params, committed(rollback), again, n_valid, kept)
    whole = [done + row[:n].tolist() for done, row, n in zip(ACCEPTED, again, kept, strict=True)]
    want, _ = feed(decoder(rollback), params, whole)
    for row in range(len(CASES)):
        reference = parts(want, row)
        for name, value in parts(state, row).items():
            assert relative_rms(value, reference[name][: len(value)]) < 1e-5, (row, name)


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_what_stands_beyond_the_valid_tokens_leaves_no_trace(rollback: RollbackStrategy) -> None:
    """Padding whose embedding is NaN: every layer of the trunk and the head computes NaN there."""
    params = make_params(DENSE)
    poison = DENSE.vocab_size - 1
    embed = np.array(params["target"]["embed"]["weight"])
    embed[poison] = np.nan
    poisoned = {**params, "target": {**params["target"], "embed": {"weight": embed}}}
    clean = [[min(token, poison - 1) for token in prompt] for prompt in PROMPTS]
    valid = np.arange(ROWS) < N_VALID[:, None]
    window = np.where(valid, np.minimum(WINDOW, poison - 1), poison)
    window[N_VALID == 0, 0] = 1  # the pending token of an idle row: the head drafts from it all the same

    start, last = feed(decoder(rollback), params, clean)
    start_poisoned, last_poisoned = feed(decoder(rollback), poisoned, clean, padding=poison)
    np.testing.assert_array_equal(last_poisoned, last)
    logits, after = play_round(params, start, window, N_VALID, KEPT)
    logits_poisoned, after_poisoned = play_round(poisoned, start_poisoned, window, N_VALID, KEPT)
    np.testing.assert_array_equal(logits_poisoned[valid], logits[valid])
    for row in range(len(CASES)):
        reference = parts(after, row)
        for name, value in parts(after_poisoned, row).items():
            np.testing.assert_array_equal(value, reference[name], err_msg=name)
    want, got = (propose(params, NEXT % poison, state, 1) for state in (after, after_poisoned))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    norms = (Qwen35MTP(DENSE).hidden_norm(state.drafter) for state in (after, after_poisoned))
    np.testing.assert_array_equal(*norms)
