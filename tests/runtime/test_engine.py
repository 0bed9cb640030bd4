"""Requests in seats: what each says does not depend on its neighbours, on when it came, or on who sat there before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from scripted import ragged_prompts
from tiny_models import DENSE, make_params

from specjax.decoding import seats
from specjax.decoding.decoder import Decoder
from specjax.decoding.loop import decode_chunk
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.runtime import rounds
from specjax.runtime.engine import Engine
from specjax.runtime.pace import Pace
from specjax.runtime.request import Job, Request
from specjax.runtime.slots import slots_of

PLAIN = Decoder(Qwen35Target(DENSE), None, "greedy", 0)
DRAFTING = Decoder(Qwen35Target(DENSE), Qwen35MTP(DENSE), "coupled", 3, margins=True)
NO_DRAFTS = DraftConfig(n_max=0)
SEATS = 3  # of most engines here, so that they share programs
PROMPTS = ragged_prompts(DENSE, (7, 1, 40, 300, 12, 90, 2), seed=8)
WANTS = [
    Settings(SamplerConfig(temperature), DraftConfig(n_max=drafts), seed, stops)
    for temperature, drafts, seed, stops in (
        (0.0, 3, 0, ()),
        (0.9, 2, 5, ()),
        (0.0, 0, 0, (3, 4)),
        (0.7, 3, 1, ()),
        (0.0, 1, 9, ()),
        (1.1, 0, 2**32 - 1, (1,)),
        (0.8, 3, 7, tuple(range(4))),
    )
]


def request(prompt: Sequence[int], max_tokens: int, settings: Settings, sequence: int = 0) -> Request:
    return Request(tuple(prompt), max_tokens, settings, sequence)


def engine(decoder: Decoder, n_seats: int, slots: int, rounds: int = 4) -> Engine:
    return Engine(decoder, make_params(DENSE), seats=n_seats, slots=slots, rounds_per_chunk=rounds)


def finish(running: Engine) -> None:
    for _ in running.run():
        pass


@cache
def alone(index: int) -> Job:
    """What a request says when nobody else is there."""
    running = engine(DRAFTING, SEATS, 512)
    job = running.submit(request(PROMPTS[index], 24, WANTS[index], index))
    finish(running)
    return job


def assert_as_alone(job: Job) -> None:
    want = alone(job.request.sequence)
    assert min(want.margins) > 1e-4, "near-ties: equality would hang on rounding"
    assert (job.tokens, job.finish_reason) == (want.tokens, want.finish_reason)
    counts = ("rounds", "tokens", "drafted", "accepted", "drafted_by_position", "accepted_by_position")
    assert [getattr(job.stats, name) for name in counts] == [getattr(want.stats, name) for name in counts]


@pytest.mark.parametrize("n_seats", [SEATS, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 7))])
def test_requests_with_settings_of_their_own_say_what_they_say_alone(n_seats: int) -> None:
    running = engine(DRAFTING, n_seats, 512)
    jobs = [
        running.submit(request(prompt, 24, wants, index))
        for index, (prompt, wants) in enumerate(zip(PROMPTS, WANTS, strict=True))
    ]
    finish(running)
    for job in jobs:
        assert_as_alone(job)
    assert len({job.finish_reason for job in jobs}) == 2


@pytest.mark.parametrize(("seconds", "longest"), [(0.5, 1), (1e-4, 8)])
def test_where_rounds_are_slow_every_round_is_shown(
    seconds: float, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = engine(PLAIN, 1, 512, rounds=8)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds * 8
        return now

    monkeypatch.setattr(running._building, "clock", clock)
    running.submit(request(PROMPTS[0], 60, Settings(draft=NO_DRAFTS)))
    pieces = [len(update.tokens) for update in running.run()]
    # The first token, the round that the program was built with, and two chunks that were started before a round had
    # been measured.
    assert pieces[:4] == [1, 1, 8, 8]
    assert set(pieces[4:-1]) == {longest}
    assert sum(pieces) == 60


class Endless:
    """Looks for the end of a text, and finds none."""

    def push(self, tokens: Sequence[int]) -> int | None:
        return None


def paced(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every round take so long, as engines see it."""
    monkeypatch.setattr(Pace, "took", lambda pace, *_: pace._round_seconds.update(dict.fromkeys(range(4), seconds)))


@pytest.mark.parametrize(("live", "watch", "longest"), [(True, None, 1), (False, None, 8), (False, Endless(), 1)])
def test_chunks_are_short_where_somebody_waits_for_their_end(
    live: bool, watch: Endless | None, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced(monkeypatch, 0.02)
    running = engine(PLAIN, 1, 512, rounds=8)
    running.submit(replace(request(PROMPTS[0], 60, Settings(draft=NO_DRAFTS)), watch=watch))
    pieces = [len(update.tokens) for update in running.run(live=live)]
    # Two chunks are started before a round has been measured.
    assert set(pieces[4:-1]) == {longest}


def test_free_seats_wait_no_longer_where_chunks_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    paced(monkeypatch, 0.009)
    counts = []
    for live in (True, False):
        running = engine(PLAIN, 2, 512, rounds=32)
        lengths = (100, *range(10, 30, 2))
        jobs = [running.submit(request(PROMPTS[0], each, Settings(draft=NO_DRAFTS))) for each in lengths]
        chunks = {id(update.record): update.record for update in running.run(live=live) if update.record is not None}
        counts.append((sum(int(chunk.n_rounds) for chunk in chunks.values()), len(chunks)))
        assert [len(job.tokens) for job in jobs] == list(lengths)
    (rounds_live, chunks_live), (rounds, chunks) = counts
    assert rounds <= rounds_live + 3
    assert chunks < chunks_live


def test_chunks_are_short_while_prompts_are_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specjax.runtime.engine.PATIENCE", 0.0)
    running, seen = engine(PLAIN, 2, 512, rounds=32), []
    start = running._rounds.start

    def noted(*given, awaited: bool, **wanted):
        seen.append((bool(running._feeding), awaited))
        return start(*given, awaited=awaited, **wanted)

    monkeypatch.setattr(running._rounds, "start", noted)
    for length in (5, 450):
        running.submit(request([1 + index % 7 for index in range(length)], 30, Settings(draft=NO_DRAFTS)))
    finish(running)
    assert set(seen) == {(True, True), (False, False)}


def test_an_engine_says_how_long_the_rounds_still_take_that_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    running, now = engine(PLAIN, 1, 512, rounds=8), 0.0
    monkeypatch.setattr(running._building, "clock", lambda: now)
    assert running.seconds_left == 0.0, "nothing has been started"
    running.submit(request(PROMPTS[0], 100, Settings(draft=NO_DRAFTS)))
    for _ in range(5):
        now += 0.016
        list(running.step())
    with monkeypatch.context() as going_on:
        going_on.setattr("specjax.runtime.running.Running.goes_on", lambda self: True)
        assert running.seconds_left == pytest.approx(0.016), "as long as the rounds before took"
        now += 0.003
        assert running.seconds_left == pytest.approx(0.013)
    finish(running)
    assert running.seconds_left == 0.0


@pytest.mark.parametrize("patience", [0.0, 100.0])
def test_a_long_prompt_stops_the_others_as_long_as_they_may_wait_and_newcomers_are_fed_together(
    patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []

    def logged(name: str, program):
        def call(*args):
            fed = int(np.sum(args[-1] > 0)) if name == "feed" else 0
            if fed or name == "rounds":  # nothing is fed when a program is built
                calls.append((name, fed))
            return program(*args)

        return call

    running = engine(DRAFTING, SEATS, 512)
    running._rounds.chunk_seconds = patience
    monkeypatch.setattr(running._rounds, "learn", lambda *_: None)
    monkeypatch.setattr("specjax.runtime.engine.feed_rows", logged("feed", seats.feed_rows))
    monkeypatch.setattr("specjax.runtime.rounds.decode_chunk", logged("rounds", decode_chunk))
    monkeypatch.setattr("specjax.runtime.engine.PATIENCE", patience)
    first = running.submit(request(PROMPTS[0], 24, WANTS[0], 0))
    list(running.step())
    late = [running.submit(request(prompt, 4, WANTS[0])) for prompt in ([5] * 450, [6] * 3)]
    finish(running)
    assert calls[:2] == [("feed", 1), ("rounds", 0)]
    names = [name for name, _ in calls]
    pieces = names[2 : names.index("rounds", names.index("feed", 2))]
    assert len(pieces) == 1 if patience == 0 else len(pieces) > 1
    assert max(fed for _, fed in calls) == 2, "short prompts wait for one piece of the long one at most"
    assert_as_alone(first)
    assert all(len(job.tokens) == 4 for job in late)


def test_a_cancelled_request_leaves_its_seat_and_no_trace() -> None:
    running = engine(DRAFTING, SEATS, 512)
    gone = running.submit(request(PROMPTS[2], 400, Settings(), 2))
    stays = [running.submit(request(PROMPTS[each], 24, WANTS[each], each)) for each in (0, 1)]
    waits = running.submit(request(PROMPTS[4], 24, WANTS[4], 4))
    never = running.submit(request(PROMPTS[5], 24, WANTS[5], 5))
    running.cancel(never)
    for update in running.run():
        if update.job is gone:
            running.cancel(gone)
    assert (gone.finish_reason, never.finish_reason, never.tokens) == ("cancelled", "cancelled", [])
    assert 1 <= len(gone.tokens) < 400
    for job in (*stays, waits):
        assert_as_alone(job)
    running.cancel(stays[0])
    assert stays[0].finish_reason == "length", "what has finished stays as it is"


def test_one_token_needs_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the program of rounds, which takes longest to compile."""
    firsts = {index: (alone(index).tokens[:1], "length") for index in (0, 1, 2, 4)}
    calls, start = [], rounds.decode_chunk
    monkeypatch.setattr(rounds, "decode_chunk", lambda *given, **more: calls.append(given) or start(*given, **more))
    running = engine(DRAFTING, SEATS, 512)
    jobs = {index: running.submit(request(PROMPTS[index], 1, WANTS[index], index)) for index in firsts}
    finish(running)
    assert {index: (job.tokens, job.finish_reason) for index, job in jobs.items()} == firsts
    assert not calls
    beside = running.submit(request(PROMPTS[0], 24, WANTS[0], 0))
    one = running.submit(request(PROMPTS[1], 1, WANTS[1], 1))
    finish(running)
    assert (one.tokens, one.finish_reason) == firsts[1]
    assert_as_alone(beside)
    assert calls


def test_a_stop_token_ends_a_row_and_is_still_emitted() -> None:
    free = alone(0)
    stop = next(token for token in free.tokens if free.tokens.index(token) > 4)
    running = engine(DRAFTING, SEATS, 512)
    job = running.submit(request(PROMPTS[0], 24, Settings(draft=DraftConfig(n_max=3), stop_tokens=(stop,))))
    other = running.submit(request(PROMPTS[0], 24, WANTS[0], 0))
    finish(running)
    assert job.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert job.finish_reason == "eos"
    assert_as_alone(other)


def test_a_text_that_needs_more_room_for_stop_tokens_joins_others_and_changes_nothing() -> None:
    def plain(index: int, *stops: int) -> Request:
        return request(PROMPTS[index], 40, Settings(draft=NO_DRAFTS, stop_tokens=stops))

    free = []
    for index in (0, 2):
        running = engine(PLAIN, 2, 512, rounds=32)
        free.append(running.submit(plain(index)).tokens)
        finish(running)
    stop = next(token for token in free[1] if free[1].index(token) > 4)
    others = [token for token in range(DENSE.vocab_size) if token not in free[1]][:4]
    running = engine(PLAIN, 2, 512, rounds=32)
    first = running.submit(plain(0))
    while len(first.tokens) < 6:
        list(running.step(rounds=2))
    second = running.submit(plain(2, *others, stop))
    finish(running)
    assert first.tokens == free[0]
    assert second.tokens == free[1][: free[1].index(stop) + 1]


def test_other_settings_compile_nothing() -> None:
    """Sixteen requests with as many settings take one program, and one that has run before with other settings."""

    def run(wants: Sequence[Settings]) -> list[list[int]]:
        running = engine(DRAFTING, SEATS, 512)
        jobs = [running.submit(request(PROMPTS[i % 3], 1 + i, each, i)) for i, each in enumerate(wants)]
        finish(running)
        return [job.tokens for job in jobs]

    programs = (decode_chunk, seats.feed_rows, seats.start_rows)
    same = run([WANTS[0]] * 16)
    before = [program._cache_size() for program in programs]
    other = run(
        [
            Settings(
                SamplerConfig(i / 16, top_k=i, top_p=1 - i / 32, min_p=i / 64),
                DraftConfig(n_max=i % 4, p_min=i / 32, skip_streak=i % 3),
                seed=i,
                stop_tokens=tuple(range(i % 5)),
                drafters=(i % 3,) if i % 2 else None,
            )
            for i in range(16)
        ]
    )
    assert [program._cache_size() for program in programs] == before
    assert other != same


def test_requests_that_do_not_fit_are_refused_with_both_numbers() -> None:
    running = engine(PLAIN, 2, 9)
    with pytest.raises(ValueError, match=r"the prompt has 9 tokens, and a seat of this engine has 9 slots"):
        running.submit(request([1] * 9, 1, Settings(draft=NO_DRAFTS)))
    with pytest.raises(ValueError, match=r"1 draft tokens are asked for; this program makes at most 0"):
        running.submit(request([1], 1, Settings(draft=DraftConfig(n_max=1))))
    with pytest.raises(ValueError, match="an engine of 0 seats"):
        engine(PLAIN, 0, 9)


def test_slots_that_are_just_enough_are_used_to_their_end() -> None:
    running = engine(PLAIN, 2, 9)
    wants = Settings(draft=NO_DRAFTS)
    jobs = [running.submit(request(*each, wants)) for each in (([1, 2, 3, 4, 5], 4), ([1, 2], 3), ([7], 50))]
    finish(running)
    assert [len(job.tokens) for job in jobs] == [4, 3, 8]
    assert [job.finish_reason for job in jobs] == ["length", "length", "context"]


def test_the_context_of_the_model_limits_the_slots() -> None:
    wants = Settings(draft=NO_DRAFTS)
    assert slots_of([request([1] * 500, 10**6, wants)], PLAIN.target) == DENSE.context_length
    assert slots_of([request([1] * 250, 20, wants), request([1], 3, wants)], PLAIN.target) == 512


def test_engines_leave_nothing_behind() -> None:
    def use(index: int) -> None:
        running = engine(DRAFTING, SEATS, 512)
        for each in range(4):
            running.submit(request(PROMPTS[each % 3], 8, WANTS[each], each))
        for number, _ in enumerate(running.run()):
            if index % 3 == 0 and number == 5:
                return  # abandoned in the middle

    for index in range(6):
        use(index)
    before = len(jax.live_arrays())
    for index in range(12):
        use(index)
    assert len(jax.live_arrays()) <= before


def test_a_chunk_is_read_once_and_while_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, int]] = []
    numbers: dict[int, int] = {}
    kept: list[object] = []  # so that no two records have one address
    get = jax.device_get

    def start(*args):
        state, record = decode_chunk(*args)
        kept.append(record)
        numbers[id(record)] = len(numbers)
        log.append(("start", numbers[id(record)]))
        return state, record

    def read(record: object) -> object:
        if id(record) in numbers:
            log.append(("read", numbers[id(record)]))
        return get(record)

    running = engine(DRAFTING, SEATS, 512)
    running.submit(request(PROMPTS[0], 3, WANTS[0]))
    finish(running)
    monkeypatch.setattr("specjax.runtime.rounds.decode_chunk", start)
    monkeypatch.setattr(jax, "device_get", read)
    for index in (0, 2, 4, 3):
        running.submit(request(PROMPTS[index], 24, WANTS[index], index))
    finish(running)
    chunks = max(number for _, number in log)
    assert chunks >= 4
    assert log == [("start", 0), *(event for i in range(chunks) for event in (("start", i + 1), ("read", i)))]
