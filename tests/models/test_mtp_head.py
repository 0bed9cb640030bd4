"""The MTP head's own state: however its rows arrive, it has been fed the target's hidden states."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, ScriptedMTP, feed, ragged_prompts, run, script
from tiny_models import DENSE, make_params, relative_rms
from wants import drafting

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.round import decode_round
from specjax.models.protocol import Choice, FeatureRequest, Params, Proposal
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.state import KVCache, KVTypes, RollbackStrategy, SequenceState

LENGTHS = (1, 2, 64, 65, 129, 200)  # fed in pieces of 64
BATCH = len(LENGTHS)
PROMPTS = ragged_prompts(DENSE, LENGTHS, seed=8)
HEAD = Qwen35MTP(DENSE)


def decoder(drafts: int, rollback: RollbackStrategy = "replay") -> Decoder:
    return Decoder(Qwen35Target(DENSE), ScriptedMTP(DENSE), "greedy", drafts, rollback, margins=True)


@cache
def fed() -> SequenceState:
    """The prompts fed to a program of another test, which need not be compiled again."""
    return feed(decoder(2, "snapshot"), script(make_params(DENSE), PROMPTS, [[]] * BATCH, 0), PROMPTS)[0]


@jax.jit
def by_definition(params: Params, tokens: jax.Array, lengths: jax.Array) -> tuple[KVCache, jax.Array]:
    """The head's cache and the target's hidden states, all at once: row p pairs hidden state p - 1 with token p."""
    batch, longest = tokens.shape
    target = Qwen35Target(DENSE)
    layers = target.init_layers(batch, longest, rows=1, chunk=longest, rollback="replay")
    start = SequenceState(layers, None, jnp.zeros_like(lengths))
    output, _ = target.extend(params, tokens, lengths, start, request=FeatureRequest(final_hidden=True), rows="none")
    hidden = output.features.final_hidden
    assert hidden is not None
    before = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
    positions = jnp.broadcast_to(jnp.arange(longest), tokens.shape)
    empty = KVCache.zeros(batch, CAPACITY, DENSE.num_kv_heads, DENSE.head_width, KVTypes())
    _, cache = HEAD.run(params, tokens, before, positions, positions < lengths[:, None], empty)
    return cache, hidden


@cache
def reference() -> tuple[KVCache, jax.Array]:
    tokens = np.zeros((BATCH, max(LENGTHS)), np.int32)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)] = prompt
    return by_definition(make_params(DENSE), tokens, jnp.array(LENGTHS))


@partial(jax.jit, static_argnames="drafts")
def propose(params: Params, pending: jax.Array, state: SequenceState, drafts: int) -> Proposal:
    def greedy(logits: jax.Array, position: jax.Array, before: Any = None) -> Choice:
        del position
        return Choice(jnp.argmax(logits, axis=-1), logits, jnp.ones(logits.shape[0]))

    return HEAD.propose(params, pending, state, num_drafts=drafts, choose=greedy, keep_going=lambda c, made: c > 0)


def test_a_prompt_fed_in_pieces_leaves_what_the_definition_says() -> None:
    state, (cache, hidden) = jax.device_get((fed(), reference()))  # NumPy compiles no indexing
    below = np.arange(CAPACITY) < np.array(LENGTHS)[:, None]
    assert relative_rms(state.drafter.kv.keys[below], cache.keys[below]) < 1e-5
    assert relative_rms(state.drafter.kv.values[below], cache.values[below]) < 1e-5
    assert not state.drafter.kv.keys[~below].any(), "nothing is written past a prompt"
    np.testing.assert_array_equal(state.drafter.count, 1)
    last = hidden[np.arange(BATCH), np.array(LENGTHS) - 1]
    assert relative_rms(state.drafter.hidden[:, -1], last) < 1e-5, "the last token's hidden row waits"


@pytest.mark.parametrize(("drafts", "rollback"), [pytest.param(1, "replay", marks=pytest.mark.slow), (2, "snapshot")])
def test_after_any_rounds_the_head_has_been_fed_as_by_a_fresh_prefill(drafts: int, rollback: RollbackStrategy) -> None:
    """Rows finish at different rounds after different accept counts, some of them while the others go on."""
    program, params = decoder(drafts, rollback), make_params(DENSE)
    budgets = [24, 3, 17, 24, 9, 20]
    plain = run(program, script(params, PROMPTS, [[]] * BATCH, 0), PROMPTS, 24)
    assert plain.rounds.margin is not None
    assert plain.rounds.margin[:, :, 0].min() > 5e-4, "near-ties: equality would hang on rounding"
    truth = plain.tokens
    correct = np.random.default_rng(0).integers(0, drafts + 1, (BATCH, CAPACITY))
    scripted = script(params, PROMPTS, truth, correct)
    result = run(program, scripted, PROMPTS, budgets)
    assert result.tokens == [tokens[:budget] for tokens, budget in zip(truth, budgets, strict=True)]
    assert set(result.rounds.n_accepted.ravel()) == set(range(drafts + 1))

    seen = [prompt + tokens[:-1] for prompt, tokens in zip(PROMPTS, result.tokens, strict=True)]
    fresh, _ = feed(program, scripted, seen)
    after = result.state.sequences
    np.testing.assert_array_equal(after.length, fresh.length)
    assert relative_rms(after.drafter.hidden[:, -1], fresh.drafter.hidden[:, -1]) < 1e-5
    got, want = jax.device_get([propose(params, result.state.pending, state, 1) for state in (after, fresh)])
    fed = np.arange(CAPACITY) <= np.asarray(after.length)[:, None]
    assert relative_rms(got.state.kv.keys[fed], want.state.kv.keys[fed]) < 1e-5
    assert relative_rms(got.state.kv.values[fed], want.state.kv.values[fed]) < 1e-5
    assert got.logq is not None
    assert want.logq is not None
    assert relative_rms(got.logq, want.logq) < 1e-5


def test_a_longer_draft_begins_with_the_shorter_one() -> None:
    state = fed()
    pending = jnp.arange(BATCH)
    one, two = (propose(make_params(DENSE), pending, state, drafts) for drafts in (1, 2))
    np.testing.assert_array_equal(one.tokens, two.tokens[:, :1])
    np.testing.assert_array_equal(one.confidence, two.confidence[:, :1])
    norm = np.linalg.norm(np.asarray(reference()[1])[np.arange(BATCH), np.array(LENGTHS) - 1], axis=-1)
    np.testing.assert_allclose(HEAD.hidden_norm(state.drafter), norm, rtol=1e-5)


def test_drafting_does_not_change_what_is_drafted_next() -> None:
    """Entries that a draft leaves in the cache are overwritten before they are read."""
    params, pending = make_params(DENSE), jnp.arange(BATCH)
    state = fed()
    first = propose(params, pending, state, 2)
    again = propose(params, pending, SequenceState(state.layers, first.state, state.length), 2)
    np.testing.assert_array_equal(again.tokens, first.tokens)
    assert first.logq is not None
    assert again.logq is not None
    assert relative_rms(again.logq, first.logq) < 1e-6


def test_drafting_stops_when_no_row_is_sure() -> None:
    state = fed()

    def choose(logits: jax.Array, position: jax.Array, before: Any = None) -> Choice:
        sure = jnp.where(position == state.length + 1, 1.0, 0.5)  # the first draft is sure, the second is not
        return Choice(jnp.argmax(logits, axis=-1), None, sure)

    proposal = jax.jit(HEAD.propose, static_argnames=("num_drafts", "choose", "keep_going"))(
        make_params(DENSE),
        jnp.arange(BATCH),
        state,
        num_drafts=4,
        choose=choose,
        keep_going=lambda confidence, made: confidence > 0.7,
    )
    np.testing.assert_array_equal(proposal.confidence, np.tile([1, 0.5, 0, 0], (BATCH, 1)))


def test_a_round_runs_the_head_over_the_rows_that_wait_and_then_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catching up is the first draft step: there is no further pass of the head over verified rows."""
    program, params, drafts = decoder(3), make_params(DENSE), 3
    rows = []
    run_head = Qwen35MTP.run

    def listen(head: Qwen35MTP, params: Params, tokens: jax.Array, *rest: jax.Array) -> tuple[jax.Array, KVCache]:
        rows.append(tokens.shape[1])
        return run_head(head, params, tokens, *rest)

    monkeypatch.setattr(Qwen35MTP, "run", listen)
    head = Decoder(program.target, HEAD, max_drafts=program.max_drafts)
    zero = jnp.zeros((1,), jnp.int32)
    wants = drafting(1, n_max=drafts)
    state = DecodeState(head.init_state(1, 16), zero, zero + 9, zero, zero > 0, zero, wants, zero)
    jax.eval_shape(partial(decode_round, head, params), state)
    assert rows[0] == drafts + 1
    assert set(rows[1:]) == {1}
