"""Sequences that are split over the rows of a mesh: batches, requests that come and go, and sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest
from test_tokens import LENGTH, PROMPTS

import specjax
from specjax.decoding.loop import decode_chunk, leaves_behind
from specjax.decoding.new_state import new_state
from specjax.decoding.seats import set_budgets
from specjax.decoding.settings import DraftConfig, Settings
from specjax.runtime.backlog import Backlog

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]


def test_a_state_is_split_over_rows(load: Load) -> None:
    model = load("qwen3", mesh="2x2")
    options = specjax.GenerateOptions(max_tokens=4, draft=0)
    engine = model.engine([options], seats=3, slots=32)
    engine.submit(model.request(PROMPTS[1], options))
    next(engine.run())
    assert engine.seats == 4
    for leaf in jax.tree.leaves(engine.state):
        assert leaf.addressable_shards[0].data.shape[0] == 2


@pytest.mark.parametrize("mesh", ["2x2", pytest.param("4x1", marks=pytest.mark.slow)])
def test_requests_come_and_go(load: Load, mesh: str) -> None:
    """More requests than seats. One starts like another and goes on from what that has computed, and one is equal to it
    and is not fed."""
    long = [*PROMPTS[2], *PROMPTS[0], *PROMPTS[1]]
    prompts = [PROMPTS[0], long, PROMPTS[1], [*long, 7, 8], PROMPTS[0][:5], long]

    def run(model: specjax.Model) -> list[list[int]]:
        options = specjax.GenerateOptions(draft=0, **LENGTH)
        engine = model.engine([options], seats=2, slots=96, prefix_bytes=2**24)
        jobs = [engine.submit(model.request(each, options, sequence=i)) for i, each in enumerate(prompts)]
        list(engine.run())
        assert [job.reused for job in jobs] == [0, 0, 0, len(long), 0, len(long)]
        return [job.tokens for job in jobs]

    assert run(load("qwen3", mesh=mesh)) == run(load("qwen3"))


@pytest.mark.parametrize("mesh", ["2x2", pytest.param("4x1", marks=pytest.mark.slow)])
def test_a_drafter_is_given_what_it_has_not_seen(load: Load, mesh: str) -> None:
    """Chunks of several depths; rows end at different times. Of some it is given nothing that waited at some time."""
    budgets = np.array([40, 17, 40, 29], np.int32)

    def run(model: specjax.Model, *, forget: bool = True) -> list[list]:
        decoder, rows, backlog = model.decoder(specjax.GenerateOptions(draft=3)), range(4), Backlog(4, slots=64)
        settings = decoder.settings([Settings(draft=DraftConfig(n_max=3))] * 4)
        state = set_budgets(new_state(decoder, model.params, settings, 64), budgets, np.ones(4, bool))
        said = []
        for depth, rounds, left in ((0, 11, []), (3, 2, []), (0, 3, []), (0, 4, [1]), (3, 2, [3]), (0, 30, [2])):
            program, waiting = decoder.at_most(depth), ()
            for row in left if forget else ():
                backlog.forget(row)
            if leaves_behind(program, state):
                waiting = backlog.taken(program, model.params, 30)
            else:
                assert decoder.drafter is not None
                if backlog:
                    sequences, _ = backlog.given(decoder.drafter, model.params, state.sequences)
                    state = replace(state, sequences=sequences)
            state, record = decode_chunk(program, model.params, state, 30, np.int32(rounds), None, *waiting)
            if record.waiting is not None:
                backlog.put(record.waiting, rounds, rows)
            done = jax.device_get(record.rounds)
            said += [(done.n_emitted.tolist(), (done.tokens * (done.n_emitted > 0)[..., None]).tolist())]
            said += [(done.drafts * (done.n_drafted > 0)[..., None]).tolist()]
            assert done.n_drafted[: int(record.n_rounds)].any() == (depth > 0)
        return said

    assert (wanted := run(load("hybrid"))) == run(load("hybrid", mesh=mesh))
    assert wanted != run(load("hybrid"), forget=False), "what is drafted shows what the drafter was given"


@pytest.mark.slow
def test_sessions_fork_and_forget(load: Load) -> None:
    """Turns, a fork, and a conversation that drops its oldest tokens when its slots are full."""
    turns = [np.random.default_rng(seed).integers(5, 250, 9).tolist() for seed in range(3)]

    def talk(model: specjax.Model) -> list[list[int]]:
        first, begun = model.session(draft=2, max_tokens=10, ignore_eos=True).generate(turns[0])
        one, _ = begun.generate(turns[1])
        other, _ = begun.generate(turns[2])
        forgetful = model.session(draft=2, max_tokens=60, ignore_eos=True, slots=48, when_full="shift", keep=2)
        long, forgetful = forgetful.generate(turns[0])
        return [each.tokens for each in (first, one, other, long, forgetful.generate(turns[1])[0])]

    assert talk(load("qwen3", mesh="2x2", drafter="ngram")) == talk(load("qwen3", drafter="ngram"))


@pytest.mark.slow
def test_a_session_with_recurrent_state_goes_back(load: Load) -> None:
    def talk(model: specjax.Model) -> list[list[int]]:
        first, begun = model.session(draft=3, max_tokens=10, ignore_eos=True).generate(PROMPTS[0])
        one, _ = begun.generate(PROMPTS[1])
        other, _ = begun.generate(PROMPTS[2])
        return [each.tokens for each in (first, one, other)]

    assert talk(load("hybrid", mesh="1x2")) == talk(load("hybrid"))
