"""`draft="auto"` in an engine: it says what plain decoding says, whatever the clock makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_engine import DRAFTING, PROMPTS, SEATS, WANTS, alone, assert_as_alone, engine, finish

import specjax
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.runtime.backlog import Backlog
from specjax.runtime.building import Building
from specjax.runtime.cost_memory import CostMemory
from specjax.runtime.depth.control import Choice, DepthControl
from specjax.runtime.engine import Engine
from specjax.runtime.reading import Reading
from specjax.runtime.request import Request
from specjax.runtime.rounds import Rounds

AUTO = DraftConfig(n_max=3, auto=True)


def scripted(monkeypatch: pytest.MonkeyPatch, choices: Iterator[Choice]) -> None:
    """Choose what the script says, and time chunks by a clock that means nothing."""
    monkeypatch.setattr(DepthControl, "choose", lambda self, wants, ready, *, may_build, alone: next(choices))


@pytest.mark.slow
@pytest.mark.parametrize("n_seats", [1, SEATS])
def test_a_depth_that_changes_with_every_chunk_changes_no_token(n_seats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged prompts, greedy and coupled rows, stop tokens; with few seats requests join while others run."""
    wanted = [alone(index) for index in range(len(PROMPTS))]  # with a fixed depth
    script = [Choice(3), Choice(0), Choice(1, 2, visit=True), Choice(0, 3), Choice(1), Choice(3, 1)]
    scripted(monkeypatch, cycle(script))
    running = engine(DRAFTING, n_seats, 512, rounds=4)
    jobs = []
    for index, (prompt, wants) in enumerate(zip(PROMPTS, WANTS, strict=True)):
        settings = Settings(wants.sampler, AUTO, wants.seed, wants.stop_tokens)
        jobs.append(running.submit(Request(tuple(prompt), 24, settings, index)))
    finish(running)
    for job, want in zip(jobs, wanted, strict=True):
        assert (job.tokens, job.finish_reason) == (want.tokens, want.finish_reason)


def test_rounds_without_drafts_leave_nothing_out_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter is given what it has not seen when somebody looks, of the text that has the seat and of no other."""
    scripted(monkeypatch, cycle([Choice(0), Choice(0, 1)]))
    running = engine(DRAFTING, SEATS, 512, rounds=4)
    greedy = Settings(SamplerConfig(), AUTO)
    for index, max_tokens in ((0, 24), (2, 7), (4, 5), (1, 9), (6, 8)):
        running.submit(Request(tuple(PROMPTS[index]), max_tokens, greedy, index))
    seats = {update.row: update.job for update in running.run() if update.record is not None}
    texts = {row: (*job.request.prompt, *job.tokens[:-1]) for row, job in seats.items()}
    fed = engine(DRAFTING, SEATS, 512)
    read = {row: fed.submit(Request(text, 1, greedy)) for row, text in texts.items()}
    finish(fed)
    state, wanted = running.state.sequences.drafter, fed.state.sequences.drafter
    for row, text in texts.items():
        kept = zip(state.contents(row, len(text)), wanted.contents(read[row].row, len(text)), strict=True)
        for got, want in kept:
            np.testing.assert_array_equal(got.positions, want.positions)
            np.testing.assert_allclose(got.rows, want.rows, rtol=1e-3, atol=1e-4)


def test_what_waits_for_the_drafter_may_fill_its_room_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter is then given it between chunks that draft nothing."""
    want = engine(DRAFTING, SEATS, 512)
    plain = want.submit(Request(tuple(PROMPTS[0]), 400, Settings(draft=DraftConfig(n_max=0))))
    finish(want)
    monkeypatch.setattr("specjax.runtime.backlog.MOST_BYTES", 1)
    given, fills = Backlog.given, []
    monkeypatch.setattr(Backlog, "given", lambda self, *args: fills.append(self) or given(self, *args))
    scripted(monkeypatch, cycle([Choice(0)]))
    running = engine(DRAFTING, SEATS, 512)
    job = running.submit(Request(tuple(PROMPTS[0]), 400, Settings(draft=AUTO)))
    finish(running)
    assert job.tokens == plain.tokens
    assert len(fills) > 1


def test_chunks_before_the_drafter_catches_up_have_exact_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that jumps wherever the host waits for something else than a chunk: who does that does not know when
    the chunk ended, and learns nothing of costs.
    """
    now, block_until_ready, learn, doubts = count(), jax.block_until_ready, Rounds.learn, []

    def wait(result: Any) -> Any:
        for _ in range(0 if isinstance(result, jax.Array) else 1000):
            next(now)
        return block_until_ready(result)

    def note(self: Rounds, reading: Reading, jobs: Any) -> None:
        learn(self, reading, jobs)
        if reading.running and reading.alone:
            doubts.append(reading.running.doubt)

    monkeypatch.setattr(jax, "block_until_ready", wait)
    monkeypatch.setattr(Building, "clock", lambda self: next(now))
    monkeypatch.setattr(Rounds, "learn", note)
    scripted(monkeypatch, cycle([Choice(0), Choice(3, 1, visit=True)]))
    running = engine(DRAFTING, SEATS, 512)
    running.submit(Request(tuple(PROMPTS[0]), 120, Settings(SamplerConfig(), AUTO)))
    finish(running)
    assert len(doubts) > 20
    assert max(doubts) < 1000


@pytest.mark.slow
def test_stop_tokens_inside_drafts_end_texts_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    model = specjax.load()
    want = model.generate("def add(a, b):\n", max_tokens=40, draft=0, ignore_eos=True)
    stop = max(want.tokens, key=want.tokens.index)  # the token that comes up last
    scripted(monkeypatch, (Choice((3, 0, 1)[index % 3], 2) for index in count()))
    options = specjax.GenerateOptions(max_tokens=40, draft=AUTO)
    running = model.engine([options], seats=2, slots=256)
    settings = Settings(draft=AUTO, stop_tokens=(stop,))
    prompt = tuple(model.encode("def add(a, b):\n"))
    jobs = [running.submit(Request(prompt, 40, settings)), running.submit(Request(prompt, 40, Settings(draft=AUTO)))]
    finish(running)
    assert jobs[0].tokens == want.tokens[: want.tokens.index(stop) + 1]
    assert jobs[1].tokens == want.tokens
    assert sum(job.stats.accepted for job in jobs) > 10


@pytest.mark.slow
def test_left_to_itself_it_says_the_same_beside_fixed_numbers() -> None:
    running = engine(DRAFTING, SEATS, 512)
    wants = {index: Settings(WANTS[index].sampler, AUTO, WANTS[index].seed) for index in (0, 1, 3)}
    automatic = [running.submit(Request(tuple(PROMPTS[i]), 24, settings, i)) for i, settings in wants.items()]
    fixed = running.submit(Request(tuple(PROMPTS[4]), 24, WANTS[4], 4))
    finish(running)
    assert [job.tokens for job in automatic] == [alone(index).tokens for index in wants]
    assert_as_alone(fixed)


def test_programs_are_built_once_and_nothing_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A depth that has been used before compiles nothing, in another engine of the model either."""
    monkeypatch.setattr("specjax.runtime.rounds.DOUBT", float("inf"))  # every chunk is timed, however busy the machine
    first = engine(DRAFTING, SEATS, 512)
    request = Request(tuple(PROMPTS[0]), 100, Settings(SamplerConfig(), AUTO))
    first.experience.effort.rounds = float("inf")
    for _ in range(2):
        first.submit(request)
        finish(first)
    assert 3 in first.experience.costs[DRAFTING, SEATS]
    second = Engine(DRAFTING, first.params, seats=SEATS, slots=512, rounds_per_chunk=4, experience=first.experience)
    first.experience.effort.rounds, first.experience.effort.building = 0.0, float("inf")  # nothing more may be built
    job = second.submit(request)
    finish(second)
    assert second.compile_seconds == 0
    assert job.timings.compile == 0
    assert len(job.stats.rounds_by_drafts) <= 4
    assert sum(job.stats.rounds_by_drafts) == job.stats.rounds


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    """An engine for which another process has measured costs of rounds: drafts are not worth theirs."""
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    running = engine(DRAFTING, SEATS, 512)
    CostMemory(DRAFTING, SEATS, running.params).write({0: 1.0, 3: 9.0})
    return running


def test_costs_that_another_process_has_measured_are_taken_over(measured: Engine) -> None:
    """The first depth is then the best one, and not the one that nothing is known of."""
    job = measured.submit(Request(tuple(PROMPTS[0]), 8, Settings(WANTS[0].sampler, AUTO)))
    finish(measured)
    assert job.stats.rounds_by_drafts[0] == job.stats.rounds
    assert measured.experience.costs[DRAFTING, SEATS].keys() == {0, 3}


def test_a_fixed_depth_before_leaves_what_another_process_has_measured(measured: Engine) -> None:
    for draft in (DraftConfig(n_max=3), AUTO):
        job = measured.submit(Request(tuple(PROMPTS[0]), 24, Settings(WANTS[0].sampler, draft)))
        finish(measured)
    assert job.stats.rounds_by_drafts[0] == job.stats.rounds


def test_without_a_drafter_or_with_a_short_one_auto_does_what_it_can() -> None:
    options = specjax.GenerateOptions(draft="auto")
    assert options.draft_config(has_drafter=False) == DraftConfig(n_max=0)
    assert options.draft_config(has_drafter=True) == DraftConfig(n_max=8, auto=True)
    assert options.draft_config(has_drafter=True, max_drafts=3) == DraftConfig(n_max=3, auto=True)
    limited = specjax.GenerateOptions(draft=DraftConfig(n_max=5, p_min=0.5, auto=True))
    assert limited.draft_config(has_drafter=True, max_drafts=3) == DraftConfig(n_max=3, p_min=0.5, auto=True)
    with pytest.raises(TypeError, match="'auto'"):
        specjax.GenerateOptions(draft="automatic")
    with pytest.raises(ValueError, match="n_min"):
        DraftConfig(n_min=1, auto=True)


@pytest.mark.slow
def test_turns_of_a_session_go_on_from_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session keeps after a turn has all that was said in it, in the drafter's state too."""
    model = specjax.load()
    texts = ("def add(a, b):\n", "\n\ndef sub(a, b):\n")
    turns = []
    plain = model.session(draft=0, ignore_eos=True, max_tokens=20)
    for text in texts:
        turn, plain = plain.generate(text)
        turns.append(turn.tokens)
    scripted(monkeypatch, (Choice((0, 3, 0, 1)[index % 4], 3) for index in count()))
    chat = model.session(draft="auto", ignore_eos=True, max_tokens=20)
    for text, want in zip(texts, turns, strict=True):
        got, chat = chat.generate(text)
        assert got.tokens == want
    assert 0 < got.stats.accepted < got.stats.drafted, "drafts that stood, and others, after rounds without any"
