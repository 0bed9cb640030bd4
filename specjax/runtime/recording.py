"""From records of rounds to a trace: of one job at its end, or of many while they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import jax
import numpy as np

from specjax.decoding.loop import ChunkRecord
from specjax.decoding.record import RoundRecord
from specjax.traces.events import events_of
from specjax.traces.trace import NOTHING, Trace, TracedText, joined

if TYPE_CHECKING:
    from specjax.runtime.request import Job, Update


@dataclass
class Recording:
    """Follows one text through its rounds.

    Attributes:
        number: names the text.
        position: where its last token stands.
        last: that token.
        most: the drafts of a round that it asked for, at most.
        hidden_row: the row of the last verification from whose hidden state drafts start; -1 for the prompt's last row.
        parts: what has been recorded, for each chunk.
    """

    number: int
    position: int
    last: int
    most: int
    hidden_row: int = -1
    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    _rounds: int = 0

    @staticmethod
    def of(job: Job) -> Recording:
        """Of a job that has its first token and no other."""
        request = job.request
        dropped = 0 if request.start is None else request.start.dropped
        return Recording(request.sequence, len(request.prompt) + dropped, job.tokens[-1], request.settings.draft.n_max)

    def add(self, record: ChunkRecord, row: int, seconds: float = np.nan) -> dict[str, np.ndarray]:
        """Take in the rounds of a chunk; returns them as columns of a trace.

        Args:
            record: the chunk's, on the host.
            row: the text's row in it.
            seconds: how long the chunk took.
        """
        n_rounds = int(record.n_rounds)
        ran = np.flatnonzero(np.asarray(record.rounds.n_emitted)[:n_rounds, row])
        columns = self._columns(
            jax.tree.map(lambda x: np.asarray(x)[ran, row], record.rounds), seconds / max(n_rounds, 1)
        )
        self.parts.append(columns)
        return columns

    def _columns(self, rounds: RoundRecord, seconds: float) -> dict[str, np.ndarray]:
        count, drafts = len(rounds.n_emitted), rounds.drafts.shape[1]
        shape = (count, drafts)
        ends = rounds.tokens[np.arange(count), rounds.n_emitted - 1]
        positions = self.position + np.concatenate([[0], np.cumsum(rounds.n_emitted)])
        drafted = np.arange(drafts) < rounds.n_drafted[:, None]
        emitted = np.arange(drafts + 1) < rounds.n_emitted[:, None]
        verified = np.arange(drafts + 1) <= rounds.n_drafted[:, None]
        known, top = rounds.probabilities, rounds.top_logprobs
        followed = np.asarray(rounds.n_emitted > rounds.n_accepted)  # else the text ended with an accepted draft

        def numbers(values: Any, where: np.ndarray) -> np.ndarray:
            if values is None:
                return np.full(where.shape, np.nan, np.float32)
            where = where.reshape(*where.shape, *(1,) * (values.ndim - where.ndim))
            return np.where(where, values, np.nan).astype(np.float32)

        columns = {
            "text": np.full(count, self.number, np.int32),
            "round": self._rounds + np.arange(count, dtype=np.int32),
            "last": np.array([self.last, *ends[:-1]][:count], np.int32),
            "position": positions[:-1].astype(np.int32),
            "hidden_row": np.array([self.hidden_row, *(rounds.n_emitted[:-1] - 1)][:count], np.int32),
            "depth": np.full(count, min(drafts, self.most), np.int32),
            **{name: getattr(rounds, name).astype(np.int32) for name in ("n_drafted", "n_accepted", "n_emitted")},
            "source": rounds.source.astype(np.int32),
            "skipped": rounds.skipped.astype(bool),
            "hidden_norm": rounds.hidden_norm.astype(np.float32),
            "seconds": np.full(count, seconds, np.float32),
            "drafts": np.where(drafted, rounds.drafts, NOTHING).astype(np.int32),
            "confidence": numbers(known and known.confidence, drafted),
            "p": numbers(known and known.p, drafted),
            "q": numbers(known and known.q, drafted),
            "p_next": numbers(known and known.p_next, followed),
            "q_next": numbers(known and known.q_next, followed),
            "tokens": np.where(emitted, rounds.tokens, NOTHING).astype(np.int32),
            "entropy": numbers(known and known.entropy, verified),
            "margin": numbers(rounds.margin, verified),
            "logprob": numbers(rounds.logprob, emitted),
            "top_tokens": np.zeros((*shape[:1], drafts + 1, 0), np.int32),
            "top_logprobs": np.zeros((*shape[:1], drafts + 1, 0), np.float32),
        }
        if top is not None:
            columns["top_tokens"] = np.where(emitted[..., None], top.tokens, NOTHING).astype(np.int32)
            columns["top_logprobs"] = numbers(top.logprobs, emitted)
        self._rounds += count
        if count:
            self.position, self.last = int(positions[-1]), int(ends[-1])
            self.hidden_row = int(rounds.n_emitted[-1]) - 1
        return columns


def trace_of(job: Job, settings: Mapping[str, Any], decode: Callable[[Sequence[int]], bytes]) -> Trace:
    """The trace of a job that has finished. Rounds that ran after its text had ended are left out.

    Args:
        job: what has been recorded of it.
        settings: see `TracedText`.
        decode: gives the bytes of tokens.
    """
    request = job.request
    text = TracedText(request.sequence, request.prompt, job.tokens[0], settings)
    recording = job.recording or Recording.of(job)
    arrays = joined(recording.parts or [_no_rounds(recording)])
    begin = 1 + np.cumsum(arrays["n_emitted"]) - arrays["n_emitted"]
    arrays = {name: array[begin < len(job.tokens)] for name, array in arrays.items()}
    tokens = np.unique(np.concatenate([arrays[name].ravel() for name in ("last", "drafts", "tokens", "top_tokens")]))
    pieces = {int(token): decode([int(token)]) for token in {*tokens.tolist(), job.tokens[0]} if token != NOTHING}
    return Trace((text,), pieces, **arrays)


def _no_rounds(recording: Recording) -> dict[str, np.ndarray]:
    """The columns of no rounds at all."""
    none: Any = np.zeros((0, 1), np.int32)
    of_rounds = ("n_emitted", "n_drafted", "n_accepted", "source", "skipped", "hidden_norm", "finite")
    scores: dict[str, Any] = dict.fromkeys(("margin", "logprob", "top_logprobs"))
    rounds = RoundRecord(tokens=none, drafts=none[:, :0], **dict.fromkeys(of_rounds, none[:, 0]), **scores)
    return recording._columns(rounds, np.nan)


class TraceWriter:
    """Writes events of jobs while they run; `add` is an observer for `TextStream.observers`.

    Every line is written whole, and what a chunk of rounds brought is flushed with the chunk.
    """

    def __init__(self, file: TextIO) -> None:
        """
        Args:
            file: where lines go.
        """
        self._file = file
        self._recordings: dict[Job, Recording] = {}
        self._iteration = 0

    def add(self, update: Update) -> None:
        """Write the rounds of an update; the first one of a job, which has none, tells where the job starts."""
        if update.record is None:
            self._recordings[update.job] = Recording.of(update.job)
            return
        columns = self._recordings[update.job].add(update.record, update.row)
        for each in Trace((), {}, **columns).rounds():
            for event in events_of(self._iteration, each):
                self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
            self._iteration += 1
        self._file.flush()
