"""Chunks of rounds: how deep and how long each is, and building their programs when they are first needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Bool

from pallas_kernels.override import current_platform
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import ChunkRecord, decode_chunk, leaves_behind
from specjax.decoding.settings import DraftConfig
from specjax.mesh.hosts import agreed, is_first
from specjax.models.protocol import Params
from specjax.runtime.backlog import MOST_BYTES, Added, Backlog
from specjax.runtime.building import Building, Experience
from specjax.runtime.cost_memory import CostMemory
from specjax.runtime.depth.control import Choice, DepthControl
from specjax.runtime.depth.costs import SETTLED, Costs
from specjax.runtime.pace import USUAL, Pace
from specjax.runtime.reading import Reading
from specjax.runtime.request import Job
from specjax.runtime.running import Running

T = TypeVar("T")
_Started = tuple[DecodeState, ChunkRecord, Added | None]

DOUBT, DOUBT_SHARE = 0.001, 0.1
"""The time of a chunk means nothing if its end is doubtful by more than so many seconds, and than this share of it,
because the caller was busy when it ended."""


class Rounds:
    """Starts chunks of rounds, and learns from those that have been read.

    Attributes:
        most: the most rounds of a chunk.
        chunk_seconds: how long the last chunk took that was read.
    """

    def __init__(
        self,
        decoder: Decoder,
        seats: int,
        slots: int,
        most: int,
        building: Building,
        experience: Experience,
        *,
        alike: bool = False,
    ) -> None:
        """
        Args:
            decoder: the program; its most drafts are the deepest that rounds can be.
            seats, slots: rows of the state, and positions that each has room for.
            most: see the attribute.
            building, experience: those of the engine.
            alike: whether several processes share the devices, and must choose the same.
        """
        self.most, self.chunk_seconds, self._seats = most, 0.0, seats
        self._building, self._experience, self._costs_key = building, experience, (decoder, seats)
        self._alike, self._pace = alike, Pace(most, steady=alike)
        self._backlog = Backlog(seats, slots)
        self._control = DepthControl(decoder.max_drafts, seats)
        self._memory: CostMemory | None = None
        self._key: tuple = ()
        self._ready: set[int] = set()
        self._last: Running | None = None
        self._free = 0.0  # when the device was done with what has been read last
        self._seconds = 0.0  # that the chunk took which has been read last

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of drafts that rounds can have."""
        return self._control.depths

    @property
    def seconds_left(self) -> float:
        """An estimate of how long the last chunk still takes; 0 if it is done, or how long it takes is not known."""
        return self._last.left(self._free) if self._last else 0.0

    def seat(self, row: int) -> None:
        """A new request has the row."""
        self._control.seat(row)
        self._backlog.forget(row)

    def caught_up(self, decoder: Decoder, params: Params, state: DecodeState) -> DecodeState:
        """The state, which is consumed, after its drafter has been given what it has not seen of earlier chunks."""
        state, catching_up = self._catch_up(decoder, params, state, alone=False)
        self._lost(catching_up)
        return state

    def _catch_up(
        self, decoder: Decoder, params: Params, state: DecodeState, *, alone: bool
    ) -> tuple[DecodeState, Running | None]:
        """Start what `caught_up` waits for, if there is anything. Rounds with drafts can be started right behind it."""
        if not self._backlog:
            return state, None
        assert decoder.drafter is not None
        if not alone:  # what else runs must not count
            self._settle(state)
        begin = self._look()
        sequences, given = self._backlog.given(decoder.drafter, params, state.sequences)
        return replace(state, sequences=sequences), Running(given, self._building.clock, begin, 0.0)

    def _lost(self, catching_up: Running | None) -> None:
        """Wait for it, and take its time from what visits of other depths may cost."""
        if catching_up:
            free = self._last.wait() if self._last else 0.0
            self._control.lost(self._of_first(catching_up.seconds(free)))

    def start(
        self,
        decoder: Decoder,
        params: Params,
        state: DecodeState,
        jobs: Mapping[int, Job],
        *,
        key: tuple,
        alone: bool,
        awaited: bool,
        most: int | None = None,
    ) -> tuple[DecodeState, Reading]:
        """Start a chunk.

        Args:
            decoder, params, state: see `decode_chunk`.
            jobs: who decodes in which row.
            key: what the programs depend on, but for their depth.
            alone: whether nothing else has been started since the last chunk, so that the time is that of rounds.
            awaited: whether somebody waits for the end of the chunk. It is awaited too if a job has stop strings.
            most: the most rounds of the chunk; None: as many as are good for speed.
        """
        self._turn_to(key)
        wants = self._wants(jobs, params)
        choice = self._control.choose(wants, self._ready, may_build=self._experience.effort.balanced, alone=alone)
        program, new = decoder.at_most(choice.depth), choice.depth not in self._ready
        # The device does not know of stop strings: a text that has ended goes on until the host has read it.
        awaited = awaited or any(job.request.watch for job in jobs.values())
        if choice.visit:
            usual = self._pace.rounds(choice.depth)
        else:
            found = any(want.auto for want in wants.values())
            usual = self._pace.rounds(choice.depth, self._pace.lasts(choice.depth, awaited=awaited, found=found))
        limits = (1,) if new else (self._most(program), usual, choice.rounds, most)
        rounds = min(each for each in limits if each is not None)
        catching_up = None
        if choice.depth or not self._backlog.has_room(rounds):
            state, catching_up = self._catch_up(decoder, params, state, alone=alone)
        # Rounds without drafts consume what waited. Processes that have to agree would wait for the chunk as well.
        if new or not choice.depth or self._alike:
            self._lost(catching_up)
            catching_up = None
        begin = self._look()  # before it is started: where devices do not run beside the host, it ends at once
        if new:
            state, record, added = self._build(decoder, params, state, jobs, choice.depth)
        else:
            behind = catching_up is not None and catching_up.goes_on()
            state, record, added = self._run(program, params, state, rounds, jobs)
            self._lost(catching_up)
            if catching_up and behind:
                begin = catching_up.wait()
        expected = self._pace.expected(rounds, choice.depth)
        self._last = Running(record.n_rounds, self._building.clock, begin, expected)
        return state, Reading(record, jobs, self._last, choice, built=new, alone=alone and not new, added=added)

    def _look(self) -> float:
        """Look whether the last chunk has ended. Returns the time."""
        if self._last:
            self._last.goes_on()
        return self._building.clock()

    def _settle(self, state: DecodeState) -> None:
        """Wait for the state. The last chunk is awaited by itself: otherwise its end would be known inexactly, and its
        time would mean nothing.
        """
        if self._last:
            self._last.wait()
        jax.block_until_ready(state)

    def read(self, reading: Reading) -> None:
        """Wait for a chunk, or for first tokens, and take the time."""
        if reading.running is None:
            jax.block_until_ready(reading.record)
            self._free = self._building.clock()
            return
        self._seconds, self._free = reading.running.seconds(self._free), reading.running.wait()
        if reading.choice and reading.n_rounds and not reading.built:
            self._pace.took(self._seconds, reading.n_rounds, reading.choice.depth)

    def build(self, decoder: Decoder, params: Params, state: DecodeState, depth: int, *, key: tuple) -> DecodeState:
        """Build the program of rounds of this depth, if there is none yet; see `start` for the arguments."""
        self._turn_to(key)
        return state if depth in self._ready else self._build(decoder, params, state, {}, depth)[0]

    def foresee(
        self, decoder: Decoder, params: Params, state: DecodeState, jobs: Mapping[int, Job], *, key: tuple
    ) -> None:
        """Begin to compile the program of the first chunk, beside that for prompts; see `start` for the arguments.

        On an accelerator each takes a minute for a large model. XLA for CPUs keeps all cores busy with one of them.
        """
        if self._alike or current_platform() == "cpu":
            return
        self._turn_to(key)
        wants = self._wants({row: job for row, job in jobs.items() if job.limit > 1}, params)
        if not wants or self._ready:
            return
        depth = self._control.foreseen(wants)
        program = decoder.at_most(depth)
        if leaves_behind(program, state):
            return
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if x.committed else None), state
        )
        limits = np.int32(1), np.int32(self._patience(program))
        arguments = program, params, shapes, self._most(program), *limits, None, None, self._mask(())
        self._building.ahead(lambda: decode_chunk.lower(*arguments).compile(), *self._program(depth))

    def _wants(self, jobs: Mapping[int, Job], params: Params) -> dict[int, DraftConfig]:
        """How each row wants to draft. Where that is to be found out, begin with what is known of costs."""
        wants = {row: job.request.settings.draft for row, job in jobs.items()}
        if self._memory is None and any(want.auto for want in wants.values()):
            self._recall(params)
        return wants

    def _turn_to(self, key: tuple) -> None:
        if key != self._key:
            self._key = key
            built = self._building.built
            self._ready = {depth for depth in self._control.depths if built(*self._program(depth))}

    def _recall(self, params: Params) -> None:
        """Begin with the costs that engines before this one have measured, in this process or in others."""
        self._memory = CostMemory(*self._costs_key, params)
        kept = self._of_first(list(self._memory.read().items()))
        self._control.costs = Costs(max(self._experience.costs.get(self._costs_key, {}), dict(kept), key=len))

    def remember(self) -> None:
        """Keep what is known of costs for other engines, and for other processes."""
        self._experience.costs[self._costs_key] = self._control.costs.known()
        if self._memory is not None and (is_first() or not self._alike):
            self._memory.write(self._control.costs.known())

    def _build(
        self, decoder: Decoder, params: Params, state: DecodeState, jobs: Mapping[int, Job], depth: int
    ) -> _Started:
        """Build the program of rounds of this depth, by running one of them; its time is not charged to decoding.

        `jax.jit` compiles at the first call, and XLA's CPU backend sets up kernels when a loop body first runs.
        """
        self._settle(state)
        before = self._building.seconds
        with self._building.at_first(f"rounds of {depth} drafts", jobs.values(), *self._program(depth)):
            state, record, added = self._run(decoder.at_most(depth), params, state, 1, jobs)
            if added is not None:
                state = replace(state, sequences=self._backlog.build(decoder, params, state.sequences))
            jax.block_until_ready((state, record))
        self._experience.effort.building += self._of_first(self._building.seconds - before)
        self._ready.add(depth)
        return state, record, added

    def _run(
        self, program: Decoder, params: Params, state: DecodeState, rounds: int, rows: Collection[int]
    ) -> _Started:
        most, behind = self._most(program), leaves_behind(program, state)
        waiting = self._backlog.taken(program, params, most) if behind else (None, None)
        limits = np.int32(rounds), np.int32(self._patience(program))
        state, record = decode_chunk(program, params, state, most, *limits, *waiting, self._mask(rows))
        if record.waiting is None:
            return state, record, None
        added = self._backlog.put(record.waiting, rounds, rows)
        return state, replace(record, waiting=None), added  # the host does not read it

    def learn(self, reading: Reading, jobs: Sequence[Job | None]) -> None:
        """Take in what was accepted and how long it took, of what has been read last.

        Args:
            reading: what has just been read.
            jobs: who sits in each row now; what others accepted does not count.
        """
        rounds = reading.n_rounds
        if reading.added:
            self._backlog.ran(reading.added, rounds)
        if rounds and reading.choice and reading.running:
            self.chunk_seconds = seconds = self._seconds
            alone = reading.alone and reading.running.doubt < max(DOUBT, DOUBT_SHARE * seconds)
            took = self._agreed(reading.choice, seconds if alone else None)
            self._control.saw(reading.choice, *reading.drafts(jobs), took)
            if reading.choice.visit:
                self._experience.costs[self._costs_key] = self._control.costs.known()
            self._experience.effort.rounds += self._estimated(reading.choice.depth, rounds) if self._alike else seconds

    def _agreed(self, choice: Choice, seconds: float | None) -> float | None:
        """How long a chunk took, so that several processes learn the same. They ask process 0 only where that tells
        something new about a number of drafts, because asking takes time.
        """
        if not self._alike:
            return seconds
        new = self._memory is not None and (choice.visit or self._control.costs.samples(choice.depth) < SETTLED)
        return agreed(seconds) if new else None

    def _of_first(self, value: T) -> T:
        """What process 0 has, where several processes must choose the same."""
        return agreed(value) if self._alike else value

    def _estimated(self, depth: int, rounds: int) -> float:
        """How long rounds took, by what all processes know."""
        costs = self._control.costs
        return rounds * costs.seconds(depth) if costs.timed else 0.0

    def _most(self, decoder: Decoder) -> int:
        """The most rounds of a program's chunks. What a drafter has not seen of them takes memory."""
        if decoder.drafts or not decoder.drafter:
            return self.most
        request = decoder.request
        values = (request.final_hidden + len(request.layer_inputs)) * decoder.target.width * self._seats
        return min(self.most, max(USUAL, MOST_BYTES // (4 * values) // USUAL * USUAL)) if values else self.most

    def _patience(self, decoder: Decoder) -> int:
        """The rounds after which a chunk ends where a row has finished. It may have finished in the chunk before, which
        the host has not read yet. So a free seat waits no longer.
        """
        return min(USUAL, self._pace.rounds(decoder.max_drafts))

    def _mask(self, rows: Collection[int]) -> Bool[np.ndarray, "B"]:
        return np.isin(np.arange(self._seats), [*rows])

    def _program(self, depth: int) -> tuple:
        return (*self._key, "rounds", depth, self.most)
