"""From records of rounds on the device to tokens of jobs on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from specjax.decoding.loop import ChunkRecord
from specjax.runtime.backlog import Added
from specjax.runtime.depth.control import Choice
from specjax.runtime.request import Job, TokenLogprobs, Update
from specjax.runtime.running import Running


@dataclass(frozen=True)
class Reading:
    """Rounds that have been started on the device, and whose rows they are.

    Attributes:
        record: what the device will have written when they are done.
        jobs: who was in which row of the record when they were started.
        running: takes the time of the rounds; None for first tokens.
        choice: what was chosen for the rounds; None for first tokens, which prompts bring and rounds do not.
        built: whether their program was built when they were started.
        alone: whether the time since the reading before is that of these rounds.
        added: what waits of it for the drafter, if anything does.
    """

    record: ChunkRecord
    jobs: Mapping[int, Job]
    running: Running | None = None
    choice: Choice | None = None
    built: bool = False
    alone: bool = False
    added: Added | None = None

    @property
    def first(self) -> bool:
        """Whether these are first tokens."""
        return self.choice is None

    @property
    def n_rounds(self) -> int:
        """How many rounds there were; waits for them."""
        return 0 if self.first else int(self.record.n_rounds)

    def drafts(self, jobs: Sequence[Job | None]) -> tuple[Int[np.ndarray, "N B"], Int[np.ndarray, "N B"]]:
        """How many drafts were verified and accepted in each round, zeros in rows that are not of these jobs."""
        same = np.array([job is not None and self.jobs.get(row) is job for row, job in enumerate(jobs)])
        rounds = self.record.rounds
        drafted, accepted = (np.asarray(x)[: self.n_rounds] for x in (rounds.n_drafted, rounds.n_accepted))
        return drafted * same, accepted * same

    def updates(self, clock: Callable[[], float]) -> Iterator[Update]:
        """Wait for the rounds, give the unfinished jobs their tokens, and yield an update for each.

        Args:
            clock: tells the seconds now, by which jobs are timed.
        """
        record = jax.device_get(self.record)
        now = clock()
        for row, job in self.jobs.items():
            if job.finish_reason is None:
                seconds = job.time(now, first=self.first)
                if record.rounds.probabilities is not None:
                    job.record(record, row, seconds)
                tokens = self._give(record, row, job)
                if tokens:
                    yield Update(job, tokens, None if self.first else record, row)

    def _give(self, record: ChunkRecord, row: int, job: Job) -> list[int]:
        """Give a job what belongs to it. Returns its new tokens."""
        rounds = record.rounds
        job.finite = job.finite and bool(np.all(of_row(record, row, rounds.finite)))
        count = job.take(of_row(record, row, rounds.tokens))
        if not self.first:
            job.stats.add(record, row, within=count)
        if rounds.margin is not None:
            job.margins += of_row(record, row, rounds.margin)[:count]
        if job.request.settings.scored and rounds.logprob is not None and rounds.top_logprobs is not None:
            chosen = of_row(record, row, rounds.logprob)
            best = of_row(record, row, rounds.top_logprobs.tokens), of_row(record, row, rounds.top_logprobs.logprobs)
            top = (tuple(zip(*pair, strict=True)) for pair in zip(*best, strict=True))
            job.logprobs += [TokenLogprobs(*each) for each in zip(chosen, top, strict=True)][:count]
        return job.tokens[len(job.tokens) - count :] if count else []


def of_row(record: ChunkRecord, row: int, values: Any) -> list[Any]:
    """The entries of `values` [rounds, B, R, ...] that belong to the tokens which a row emitted.

    Values of whole rounds, [rounds, B], give one entry for each round in which the row emitted something.
    """
    emitted = np.asarray(record.rounds.n_emitted)[: int(record.n_rounds), row]
    own = np.asarray(values)[: len(emitted), row]
    if own.ndim == 1:
        return own[emitted > 0].tolist()
    return own[np.arange(own.shape[1]) < emitted[:, None]].tolist()
