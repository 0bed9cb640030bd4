"""The host's side of the loop: one program, little that crosses, and no waiting for what is being computed."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from scripted import feed, ragged_prompts, run, start
from tiny_models import DENSE, make_params
from wants import GREEDY, alike

from specjax.decoding.acceptance import Rule
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.settings import DraftConfig, SamplerConfig
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target

DRAFTS, ROUNDS = 3, 2
PROMPTS = ragged_prompts(DENSE, (1, 9, 40), seed=5)
BATCH = len(PROMPTS)
WARM = SamplerConfig(temperature=0.9, top_k=30, top_p=0.95)
PLAIN = Decoder(Qwen35Target(DENSE), None, "greedy", 0, margins=True)  # when a chunk ends is no matter of drafts


def decoder(rule: Rule = "rejection", **records: Any) -> Decoder:
    return Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE), rule, DRAFTS, "snapshot", **({"margins": True} | records))


def started(program: Decoder, sampler: SamplerConfig = GREEDY, **draft: Any) -> DecodeState:
    """Prompts that have been read, each with 20 tokens to go."""
    state, logits = feed(program, make_params(DENSE), PROMPTS)
    budget, sequence = jnp.full((BATCH,), 21, jnp.int32), jnp.arange(BATCH, dtype=jnp.int32)
    wants = alike(BATCH, sampler, seed=3, draft=DraftConfig(n_max=program.max_drafts, **draft))
    return start(program, state, logits, budget, wants, sequence)[0]


@pytest.mark.parametrize(("sampler", "rule"), [(GREEDY, "coupled"), (WARM, "rejection")])
def test_tokens_and_counts_leave_the_device_and_no_logits(sampler: SamplerConfig, rule: Rule) -> None:
    program = decoder(rule)
    state = jax.eval_shape(partial(started, program, sampler))
    after, record = jax.eval_shape(partial(decode_chunk, program, make_params(DENSE), rounds=ROUNDS), state=state)
    assert after == state
    for leaf in jax.tree.leaves((after.replace(sequences=None), record)):
        assert DENSE.vocab_size not in leaf.shape
        assert leaf.size <= ROUNDS * BATCH * (DRAFTS + 1)


def test_a_chunk_ends_when_a_row_is_done_but_not_before_it_has_some_rounds() -> None:
    state = started(PLAIN).replace(budget=jnp.array([2, 9, 20]))
    counts = []
    while bool(jnp.any(state.active)):
        state, record = decode_chunk(PLAIN, make_params(DENSE), state, 16, None, np.int32(3))
        counts.append(int(record.n_rounds))
    assert counts == [3, 6, 11]


def test_a_row_that_the_host_takes_to_be_going_ends_the_chunk_if_it_is_done() -> None:
    state = started(PLAIN).replace(budget=jnp.array([0, 9, 20]))
    counts = []
    for going in ([True, True, True], [False, True, True], [False, False, True], [False, False, True]):
        limits = np.int32(8), np.int32(3)
        state, record = decode_chunk(PLAIN, make_params(DENSE), state, 16, *limits, going=np.array(going))
        counts.append(int(record.n_rounds))
    assert counts == [3, 6, 8, 3]


def primitives(jaxpr: Any) -> set[str]:
    inner = [primitives(sub) for equation in jaxpr.eqns for sub in jaxprs_in_params(equation.params)]
    return {equation.primitive.name for equation in jaxpr.eqns}.union(*inner)


def test_rounds_are_one_loop_that_never_asks_the_host() -> None:
    program = decoder()
    state = jax.eval_shape(partial(started, program))
    jaxpr = jax.make_jaxpr(partial(decode_chunk, program, make_params(DENSE), rounds=ROUNDS))(state=state)
    (call,) = jaxpr.eqns
    (body,) = jaxprs_in_params(call.params)
    assert [equation.primitive.name for equation in body.eqns].count("while") == 1
    assert not [name for name in primitives(jaxpr.jaxpr) if "callback" in name or "infeed" in name]


def test_ragged_lengths_budgets_and_acceptance_share_one_program() -> None:
    program, params = decoder(), make_params(DENSE)
    before = decode_chunk._cache_size()
    emitted = set()
    for seed, budgets in ((0, [3, 24, 9]), (1, [24, 1, 24])):
        chosen = PROMPTS[::-1] if seed else PROMPTS
        result = run(program, params, chosen, budgets, seed=seed, sampler=WARM, rounds_per_chunk=ROUNDS)
        emitted |= set(np.ravel(result.rounds.n_emitted))
    assert len(emitted) > 2
    assert decode_chunk._cache_size() - before <= 1


def test_a_state_is_all_that_a_continuation_needs() -> None:
    """Taken to the host and back, it goes on as if it had never left, as often as one likes; draws included."""
    program, params = decoder(), make_params(DENSE)
    state, _ = decode_chunk(program, params, started(program, WARM, skip_streak=1), ROUNDS)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    hash(jax.tree.structure(state))
    away = jax.tree.map(np.array, state)
    want, record = decode_chunk(program, params, state, ROUNDS)
    assert record.rounds.n_emitted.sum() > BATCH
    for _ in range(2):
        back = jax.tree.map(jnp.array, away)
        got, again = decode_chunk(program, params, back, ROUNDS)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(back.sequences)), "the caches are updated in place"
        for a, b in zip(jax.tree.leaves((got, again)), jax.tree.leaves((want, record)), strict=True):
            np.testing.assert_array_equal(a, b)
