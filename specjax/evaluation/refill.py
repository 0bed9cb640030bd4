"""A running batch whose rows are given to new prompts as they finish.

A new prompt is prefilled as a batch of one, and its row is then put into the running state. Every array of a state has
the batch as its first axis, so that this is one assignment per array, whatever the model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import ChunkRecord, decode_chunk
from specjax.decoding.prefill import beside, chunks, prefill, start_decoding
from specjax.decoding.settings import Settings
from specjax.decoding.stats import DecodeStats
from specjax.models.protocol import Params
from specjax.runtime.batch import cache_capacity, finish_reason, rows_of, token_budget, warm_up_prefill
from specjax.runtime.generation import FinishReason


@dataclass(frozen=True)
class Job:
    """A prompt to continue.

    Attributes:
        sequence: names its random stream, and the job.
        prompt: token ids.
        max_tokens: tokens to emit at most.
    """

    sequence: int
    prompt: Sequence[int]
    max_tokens: int


@dataclass
class Seat:
    """A job that has a row of the batch.

    Attributes:
        job: what it works on.
        budget: tokens that it may emit, see `token_budget`.
        first: its first token, on the device until the first chunk of rounds is read.
        tokens: what has been emitted.
        stats: what drafting brought.
    """

    job: Job
    budget: int
    first: Array | None
    tokens: list[int] = field(default_factory=list)
    stats: DecodeStats = field(default_factory=DecodeStats)
    finish_reason: FinishReason | None = None

    def take(self, record: ChunkRecord, row: int, tokens: Sequence[int], stop_tokens: Sequence[int]) -> None:
        """Add what a chunk of rounds, read to the host, brought for this row."""
        if self.first is not None:
            self.tokens.append(int(self.first[0]))
            self.first = None
        self.tokens += tokens
        self.stats.add(record, row)
        self.finish_reason = finish_reason(self.tokens, self.job.max_tokens, self.budget, stop_tokens)


@partial(jax.jit, donate_argnames="state")
def insert_row(state: DecodeState, new: DecodeState, row: Int[Array, ""]) -> DecodeState:
    """Put the one row of `new` in place of a row of `state`."""
    return jax.tree.map(lambda old, one: old.at[row].set(one[0]), state, new)


@dataclass
class RefilledBatch:
    """Runs jobs through a batch of a fixed number of rows.

    What comes out for a job does not depend on the number of rows, or on the jobs beside it, except that rounding in
    matrix products may differ between batch sizes, which can decide a near-tie.

    Attributes:
        decoder, params: the program and its weights.
        rows: B.
        capacity: slots of the KV caches, see `capacity_for`.
        settings: what every job wants.
        rounds_per_chunk: rounds between looks of the host.
        compile_seconds, run_seconds, tokens: filled in as it runs; seconds of running include prefill.
    """

    decoder: Decoder
    params: Params
    rows: int
    capacity: int
    settings: Settings
    rounds_per_chunk: int
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    tokens: int = 0

    def run(self, jobs: Sequence[Job]) -> Iterator[Seat]:
        """Yield jobs as they finish.

        Raises:
            ValueError: a prompt and the tokens after it do not fit the capacity.
        """
        waiting = deque(jobs)
        if not waiting:
            return
        longest = max(jobs, key=lambda job: slots_of(job, self.decoder))
        if (slots := slots_of(longest, self.decoder)) > self.capacity:
            raise ValueError(
                f"job {longest.sequence} needs {slots} slots of the caches, {len(longest.prompt)} for its prompt and"
                f" the others for new tokens, but the batch has a capacity of {self.capacity}; see capacity_for"
            )
        self._warm_up({tokens.shape[1] for job in jobs for tokens, _ in chunks([job.prompt])})
        begin = time.perf_counter()
        seats: list[Seat | None] = [None] * self.rows
        state = self._refill(self._idle(), seats, waiting)
        seated = tuple(seats)
        state, record = self._chunk(state)
        while any(seat is not None and seat.finish_reason is None for seat in seats):
            # The host reads a chunk while the next one runs. A row that turns out to be finished stands idle in the
            # latter and is refilled after it.
            following_seated = tuple(seats)
            state, following = self._chunk(state)
            record = jax.device_get(record)
            tokens = rows_of(record, record.rounds.tokens)
            for row, seat in enumerate(seated):
                if seat is not None and seat.finish_reason is None:
                    seat.take(record, row, tokens[row], self.settings.stop_tokens)
                    if seat.finish_reason is not None:
                        self.tokens += len(seat.tokens)
                        self.run_seconds = time.perf_counter() - begin
                        yield seat
            state = self._refill(state, seats, waiting)
            seated, record = following_seated, following

    def _chunk(self, state: DecodeState) -> tuple[DecodeState, ChunkRecord]:
        return decode_chunk(self.decoder, self.params, state, self.rounds_per_chunk)

    def _refill(self, state: DecodeState, seats: list[Seat | None], waiting: deque[Job]) -> DecodeState:
        for row, seat in enumerate(seats):
            if waiting and (seat is None or seat.finish_reason is not None):
                seats[row], new = self._admit(waiting.popleft())
                state = insert_row(state, new, jnp.int32(row))
        return state

    def _admit(self, job: Job) -> tuple[Seat, DecodeState]:
        budget = token_budget(self.decoder.target, job.prompt, job.max_tokens)
        empty = self.decoder.init_state(1, self.capacity)
        sequences, logits = prefill(self.decoder, self.params, empty, [job.prompt])
        one, stream = (jnp.asarray([value], jnp.int32) for value in (budget, job.sequence))
        settings = self.decoder.settings([self.settings])
        new, _ = start_decoding(self.decoder, sequences, logits, one, settings, stream)
        return Seat(job, budget, new.pending), new

    def _warm_up(self, chunk_sizes: set[int]) -> None:
        """Run every program once, so that it is compiled."""
        begin = time.perf_counter()
        new = warm_up_prefill(self.decoder, self.params, 1, self.capacity, sorted(chunk_sizes), self.settings)
        jax.block_until_ready(self._chunk(insert_row(self._idle(), new, jnp.int32(0))))
        self.compile_seconds = time.perf_counter() - begin

    def _idle(self) -> DecodeState:
        """B rows with nothing to do."""
        zero = np.zeros((self.rows,), np.int32)
        idle = DecodeState(
            sequences=self.decoder.init_state(self.rows, self.capacity),
            pending=jnp.array(zero),
            budget=jnp.array(zero),
            streak=jnp.array(zero),
            skip=jnp.array(zero > 0),
            sequence=jnp.array(zero),
            settings=self.decoder.settings([self.settings] * self.rows),
            dropped=jnp.array(zero),
        )
        return beside(self.params, idle)


def capacity_for(jobs: Sequence[Job], decoder: Decoder) -> int:
    """Slots of KV caches in which every job fits."""
    return cache_capacity(slots_of(job, decoder) for job in jobs)


def slots_of(job: Job, decoder: Decoder) -> int:
    """Slots of KV caches that a job may fill."""
    return len(job.prompt) + token_budget(decoder.target, job.prompt, job.max_tokens)
