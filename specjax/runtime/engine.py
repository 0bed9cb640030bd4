"""The engine: requests take seats of one running state, and leave when they are done.

Between two chunks of rounds newcomers are seated, and a piece of their prompts is fed, all newcomers' together. So a
long prompt does not stop the others for longer than a piece takes. The host reads a chunk while the next one runs.

What a request says does not depend on its neighbours or on when it came: draws are keyed by its own seed, stream and
positions, and each request starts from a state of its own. Rounding in matrix products may differ with the number of
rows, which can decide a near-tie.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import jax
import numpy as np

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.new_state import new_state, seats_on, widened
from specjax.decoding.seats import Newcomers, drop_tokens, feed_rows, set_budgets, start_rows
from specjax.decoding.settings import Room, RowSettings, Settings
from specjax.mesh.hosts import shared
from specjax.mesh.shards import devices_of
from specjax.models.protocol import Params
from specjax.runtime.building import Building, Experience
from specjax.runtime.grammars import GrammarShelf
from specjax.runtime.kernels import measure_kernels
from specjax.runtime.newcomers import IDLE, newcomers
from specjax.runtime.pace import DEFAULT_ROUNDS
from specjax.runtime.pieces import Piece
from specjax.runtime.prefixes import PrefixCache
from specjax.runtime.reading import Reading
from specjax.runtime.request import Job, Request, Update
from specjax.runtime.rounds import Rounds
from specjax.runtime.texts import Texts
from specjax.state import SequenceState

PATIENCE = 0.25
"""The most seconds that prompts are fed while others decode."""

NEAR = 64
"""How many requests at the head of the queue are searched for prompts that start alike."""


class Engine:
    """Runs requests. One thread drives an engine; engines of one model may run in several.

    Attributes:
        decoder, params: the program and its weights.
        seats: B, how many requests run at once; on a mesh, a multiple of its rows.
        slots: S, positions that each seat has room for.
        rounds_per_chunk: the most rounds that run before the host reads their tokens, see `Pace`.
        prefixes: texts that are kept for prompts that start like them.
        experience: what engines of the model have learnt.
    """

    def __init__(
        self,
        decoder: Decoder,
        params: Params,
        *,
        seats: int,
        slots: int,
        rounds_per_chunk: int = DEFAULT_ROUNDS,
        prefix_bytes: int = 0,
        grammar_room: tuple[int, int] = (0, 0),
        experience: Experience | None = None,
    ) -> None:
        """
        Args:
            decoder, params, seats, slots, rounds_per_chunk: see the attributes.
            prefix_bytes: budget for texts that are kept, so that prompts which start alike are computed once.
            grammar_room: see `GrammarShelf`.
            experience: that of other engines of the model, if there are any.

        Raises:
            ValueError: there is no seat or no slot.
        """
        if seats < 1 or slots < 1:
            raise ValueError(f"an engine of {seats} seats and {slots} slots; it needs at least 1 of each")
        self.decoder, self.params = decoder, params
        self.seats, self.slots, self.rounds_per_chunk = seats_on(params, seats), slots, rounds_per_chunk
        self.experience = Experience() if experience is None else experience
        self._building = Building(self.experience.compiled)
        self._alike = alike = shared(devices_of(params))
        sizes = self.seats, slots, rounds_per_chunk
        self._rounds = Rounds(decoder, *sizes, self._building, self.experience, alike=alike)
        self.prefixes = PrefixCache(prefix_bytes)
        self._texts = Texts(decoder, params, self.seats, slots, self.prefixes)
        self._waiting: deque[Job] = deque()
        self._jobs: list[Job | None] = [None] * self.seats
        self._feeding: dict[int, Job] = {}  # by their seats, in order of their turns
        self._unread: deque[Reading] = deque()
        self._state: DecodeState | None = None
        self._room = Room(0, leaning=False)
        self._grammars = GrammarShelf(decoder.target.vocab_size, self.seats, grammar_room)
        measure_kernels(decoder, params, self.seats, slots, self.experience.measured)

    # What callers do

    def submit(self, request: Request) -> Job:
        """Put a request in the queue, if `check` has nothing against it."""
        self.check(request)
        job = Job(request, self._limit(request), room=self.slots - len(request.prompt) + 1)
        self._waiting.append(job)
        return job

    def check(self, request: Request) -> None:
        """Raise ValueError if its prompt leaves no slot for a new token, or the decoder cannot do what it wants."""
        self.decoder.check(request.settings)
        context, length = self.decoder.target.context_length, len(request.prompt)
        if length >= min(self.slots, context):
            raise ValueError(
                f"the prompt has {length} tokens, and a seat of this engine has {self.slots} slots (the"
                f" model's context is {context}), of which a new token needs one; shorten it, or give more slots"
            )

    def cancel(self, job: Job) -> None:
        """End a request; its seat is free from the next step on. One that has finished stays as it is."""
        if job.finish_reason is not None:
            return
        job.finish_reason = "cancelled"
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._jobs:
            self._stop([job])

    @property
    def compile_seconds(self) -> float:
        """Seconds spent on building programs so far."""
        return self._building.seconds

    def jobs(self) -> list[Job | None]:
        """The request in each seat that goes on, None in a free one."""
        seated = self._seated()
        return [seated.get(row) for row in range(self.seats)]

    @property
    def load(self) -> int:
        """How many requests go on or wait."""
        return len(self._waiting) + len(self._seated())

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.load

    @property
    def seconds_left(self) -> float:
        """An estimate of how long the rounds that were started last still take; 0 if they are done, or not known."""
        return self._rounds.seconds_left

    @property
    def state(self) -> DecodeState:
        """The running state, if there is one yet. The next step consumes it: copy what is to be kept."""
        self._state = self._rounds.caught_up(self.decoder, self.params, self._running)
        return self._state

    @property
    def _running(self) -> DecodeState:
        """The running state, in which the drafter's part may be behind."""
        if self._state is None:
            raise RuntimeError("this engine has run nothing yet, and has no state")
        return self._state

    def run(self, *, live: bool = False) -> Iterator[Update]:
        """Work until every request is done; yield what becomes known. Submit and cancel in between as you like.
        Unless users read texts as they come (`live`), more becomes known at once, and the host has less to do.
        """
        while not self.idle:
            yield from self.step(live=live)

    def step(self, rounds: int | None = None, *, live: bool = False) -> Iterator[Update]:
        """Seat newcomers, feed a piece of prompts, start a chunk of rounds, and read what was started before it.

        The chunk has at most so many `rounds`; with 0 there is none, and all that was started is read. None leaves it
        to the engine. See `run` for `live`.
        """
        self._admit()
        fed = self._feed()
        awaited = live or bool(self._feeding)
        running = 0 if rounds == 0 else self._decode(alone=not fed, awaited=awaited, most=rounds)
        while len(self._unread) > running:
            self._rounds.read(reading := self._unread.popleft())
            going = [job for job in reading.jobs.values() if job.finish_reason is None]
            yield from reading.updates(self._building.clock)
            self._after([job for job in going if job.finish_reason not in (None, "cancelled")])
            self._rounds.learn(reading, self._jobs)
        if self.idle:
            self._unread.clear()  # a chunk in which every row was idle
            self._rounds.remember()

    # Seats

    def _limit(self, request: Request) -> int:
        if request.when_full is not None:
            return request.max_tokens
        return min(request.max_tokens, min(self.decoder.target.context_length, self.slots) - len(request.prompt))

    def _seated(self) -> dict[int, Job]:
        """The jobs that are not done, by their seats."""
        return {row: job for row, job in enumerate(self._jobs) if job is not None and job.finish_reason is None}

    def _admit(self) -> None:
        taken = self._seated()
        for row in (row for row in range(self.seats) if row not in taken):
            if (job := self._next()) is None:
                return
            self._jobs[row], job.row = job, row
            self._rounds.seat(row)
            self._seat(row, job)

    def _waiting_near(self) -> list[Job]:
        """The jobs that will be seated soon."""
        return list(islice(self._waiting, NEAR))

    def _next(self) -> Job | None:
        """The first waiting job, except jobs that wait for a prompt that starts alike and is being fed."""
        feeding = [job.request.prompt for job in self._feeding.values()]
        for job in self._waiting_near():
            if not self.prefixes.expects(job.request.prompt, feeding):
                self._waiting.remove(job)
                return job
        return None

    def _seat(self, row: int, job: Job) -> None:
        """Put the state that a request starts from into its row."""
        self._prepare_state(Room.of([job.request.settings]))
        self._state = self._grammars.brought(self._running, tuple(self._seated().values()), self.params)
        job.begin(self._building.clock())
        sequences = self._texts.begin(self._running.sequences, row, job, self._waiting_near())
        self._state = replace(self._running, sequences=sequences)
        self._feeding[row] = job

    # Prompts

    def _feed(self) -> bool:
        """Feed prompts that are not in the state yet, and let those that are complete decode.

        One piece is fed, and more as long as those that decode may wait.

        Returns:
            Whether there was anything to do.
        """
        begin, fed = self._building.clock(), False
        while self._more_to_feed() and not (fed and self._now() - begin >= self._patience()):
            fed = True
            if known := [(row, job) for row, job in self._feeding.items() if job.fed]:
                self._begin(dict(enumerate(known)), self._texts.known_logits([job for _, job in known]))
            else:
                self._feed_piece(Piece.next_of(self._feeding, self.decoder, self._running.sequences))
        return fed

    def _more_to_feed(self) -> bool:
        seated = self._seated()
        self._feeding = {row: job for row, job in self._feeding.items() if seated.get(row) is job}
        return bool(self._feeding)

    def _patience(self) -> float:
        """Seconds that feeding may last before rounds go on.

        Those that decode wait while others are fed, and the other way round. Each of them counts the same, but prompts
        get as long as a chunk of rounds takes at least.
        """
        if self._alike:
            return 0.0  # several processes must do the same, and their clocks differ
        decoding = len(self._seated()) - len(self._feeding)
        share = max(1.0, len(self._feeding) / max(decoding, 1))
        return min(PATIENCE, self._rounds.chunk_seconds * share) if decoding else PATIENCE

    def _now(self) -> float:
        """Seconds when all that was started is done, without those spent on building."""
        jax.block_until_ready(self._running.sequences.length)
        return self._building.clock()

    def _feed_piece(self, piece: Piece) -> None:
        self._prepare_feeding(piece)
        sequences, logits = self._feed_rows(piece)
        self._state = replace(self._running, sequences=sequences)
        self._texts.pause(sequences, piece.columns, logits)
        for row, _ in piece.columns.values():
            self._feeding[row] = self._feeding.pop(row)  # the next turn is that of another
        for row, job in piece.complete.values():
            start = job.request.start
            if start is not None and start.prefilled is not None:
                start.prefilled(sequences)
            self._texts.remember(sequences, row, job, job.request.prompt)
        if piece.complete:
            self._begin(piece.complete, logits)

    def _begin(self, complete: Mapping[int, tuple[int, Job]], logits: jax.Array) -> None:
        """Let jobs decode whose prompts are in the state.

        Args:
            complete: the row and the job of each column that has one.
            logits: [P, V], those after the prompts, by columns.
        """
        jobs = {column: job for column, (_, job) in complete.items()}
        with self._building.at_first("first tokens", jobs.values(), *self._key("start", len(logits))):
            new = self._newcomers(complete, len(logits))
            self._state, record = start_rows(self.decoder, self._running, logits, new)
        for row, _ in complete.values():
            del self._feeding[row]
        if jobs:
            self._unread.append(Reading(record, jobs))

    def _feed_rows(self, piece: Piece) -> tuple[SequenceState, jax.Array]:
        models, state = (self.decoder.target, self.decoder.drafter), self._running.sequences
        return feed_rows(*models, self.params, state, piece.rows, piece.tokens, piece.n_valid)

    # Rounds

    def _decode(self, *, alone: bool, awaited: bool, most: int | None) -> int:
        """Start a chunk if anybody has more to say than a first token, see `Rounds.start`; how many were started."""
        decoding = {row: job for row, job in self._seated().items() if job.fed and job.limit > 1}
        if not decoding:
            return 0
        program = self.decoder, self.params, self._running
        self._state, reading = self._rounds.start(
            *program, decoding, key=self._key(), alone=alone, awaited=awaited, most=most
        )
        self._unread.append(reading)
        return 1

    def _after(self, ended: Sequence[Job]) -> None:
        """Keep texts that have ended, stop those whose ends the device does not know; make room where slots ran out."""
        self._stop([job for job in ended if job.finish_reason == "stop"])
        for job in ended:
            text = (*job.request.prompt, *job.tokens[:-1])
            if self._texts.keeps(job):
                row, exact = self._jobs.index(job), job.finish_reason != "stop"
                self._texts.remember(self.state.sequences, row, job, text, exact=exact)
        full = {row: job for row, job in self._seated().items() if job.fed and len(job.tokens) == job.room}
        if full:
            self._shift(full)

    def _stop(self, jobs: Sequence[Job]) -> None:
        rows = [row for row, job in enumerate(self._jobs) if job in jobs]
        if rows:
            self._set_budgets(dict.fromkeys(rows, 0))

    def _set_budgets(self, budgets: dict[int, int]) -> None:
        values, given = np.zeros(self.seats, np.int32), np.zeros(self.seats, bool)
        for row, budget in budgets.items():
            values[row], given[row] = budget, True
        self._state = set_budgets(self._running, values, given)

    def _shift(self, full: dict[int, Job]) -> None:
        """Let rows drop tokens, so that they go on in the slots that they have."""
        keep, drop = np.zeros(self.seats, np.int32), np.zeros(self.seats, np.int32)
        for row, job in full.items():
            cut = job.request.when_full
            assert cut is not None, "a text that may not drop tokens ends before its slots do"
            keep[row], drop[row] = cut
            job.cuts += 1
            job.room += cut.drop
        self._state = drop_tokens(self.state, keep, drop)
        self._set_budgets({row: min(job.limit, job.room) - len(job.tokens) for row, job in full.items()})

    # Programs

    def _newcomers(self, complete: Mapping[int, tuple[int, Job]], width: int) -> Newcomers:
        grammars = self._grammars.rows({column: job for column, (_, job) in complete.items()}, width)
        vocab_size = self.decoder.target.vocab_size if self._room.leaning else None
        return newcomers(complete, width, self.seats, self._settings, grammars, vocab_size)

    def _settings(self, settings: Sequence[Settings]) -> RowSettings:
        return self.decoder.settings(settings, room=self._room)

    def _prepare_state(self, room: Room) -> None:
        """Make the running state, with room for such settings."""
        more = self._room.with_room_for(room)
        if self._state is not None and more == self._room:
            return
        self._room = more
        if self._state is None:
            self._state = new_state(self.decoder, self.params, self._settings([IDLE] * self.seats), self.slots)
        else:
            self._state = widened(self._state, self.params, more, self.decoder.target.vocab_size)

    def _prepare_feeding(self, piece: Piece) -> None:
        """Build the programs that feed a piece of this size, by running them on a piece without tokens."""
        key = self._key("feed", *piece.tokens.shape)
        if self._building.built(*key):
            return
        self._rounds.foresee(self.decoder, self.params, self._running, self._seated(), key=self._key())
        with self._building.at_first("prompts", self._seated().values(), *key):
            sequences, logits = self._feed_rows(Piece.empty(self.seats, *piece.tokens.shape))
            self._state = replace(self._running, sequences=sequences)
            jax.block_until_ready(logits)
        self._begin({}, logits)

    def _key(self, *what: Any) -> tuple:
        return (self.decoder, self.seats, self.slots, self._room, self._grammars.shape, *what)
