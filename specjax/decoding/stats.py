"""Counts of a decoding run, summed over rounds and rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from specjax.decoding.loop import ChunkRecord


@dataclass
class DecodeStats:
    """Counts of rounds, drafts and accepted drafts.

    Attributes:
        rounds: rounds of rows that were not finished (a round of a batch of 8 counts up to 8 times).
        tokens: tokens emitted by these rounds. The first token of a sequence comes from prefill and is not counted.
        drafted, accepted: draft tokens verified and accepted.
        drafted_by_position, accepted_by_position: the same by position in the draft, position 1 first.
        drafted_by_drafter, accepted_by_drafter: the same by which of several drafters made them, in their order.
            The lists end with the last drafter that drafted anything.
        rounds_by_drafts: in how many rounds 0, 1, 2, ... drafts were verified.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_drafter: list[int] = field(default_factory=list)
    accepted_by_drafter: list[int] = field(default_factory=list)
    rounds_by_drafts: list[int] = field(default_factory=list)

    def add(self, record: ChunkRecord, row: int | None = None, *, within: int | None = None) -> None:
        """Count a chunk's rounds, of one row or of all.

        Args:
            record: the chunk's, on the host.
            row: None for all.
            within: of one row, only the rounds that begin within so many of its tokens: a text that ends in a stop
                string has ended before the device knows. How many rounds ran behind its end depends on the clock.
        """
        n_rounds = int(record.n_rounds)
        columns = slice(None) if row is None else slice(row, row + 1)
        emitted = np.asarray(record.rounds.n_emitted)[:n_rounds, columns]
        if within is not None:
            n_rounds = int((np.cumsum(emitted) - emitted[:, 0] < within).sum())
            emitted = emitted[:n_rounds]
        drafted = np.asarray(record.rounds.n_drafted)[:n_rounds, columns]
        accepted = np.asarray(record.rounds.n_accepted)[:n_rounds, columns]
        self.rounds += int(np.count_nonzero(emitted))
        self.tokens += int(emitted.sum())
        self.rounds_by_drafts = _added(self.rounds_by_drafts, np.bincount(drafted[emitted > 0]))
        positions = record.rounds.drafts.shape[-1]
        missing = positions - len(self.drafted_by_position)
        self.drafted_by_position += [0] * missing
        self.accepted_by_position += [0] * missing
        if not drafted.any():
            return
        self.drafted += int(drafted.sum())
        self.accepted += int(accepted.sum())
        source = np.asarray(record.rounds.source)[:n_rounds, columns][drafted > 0]
        self.drafted_by_drafter = _added(self.drafted_by_drafter, np.bincount(source, drafted[drafted > 0]))
        self.accepted_by_drafter = _added(self.accepted_by_drafter, np.bincount(source, accepted[drafted > 0]))
        self.drafted_by_position = _added(self.drafted_by_position, _by_position(drafted, positions))
        self.accepted_by_position = _added(self.accepted_by_position, _by_position(accepted, positions))

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of a round, tau: 1 when nothing is ever accepted."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def drafts_per_round(self) -> float:
        """Mean drafts of a round."""
        return self.drafted / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        """The share of verified drafts that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the rounds that drafted this far, the share that accepted this far."""
        return [
            accepted / drafted if drafted else 0.0
            for accepted, drafted in zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        ]


def _added(counts: list[int], more: np.ndarray) -> list[int]:
    """The sums of two lists of counts; one may be longer than the other."""
    return [int(a + b) for a, b in zip_longest(counts, more, fillvalue=0)]


def _by_position(counts: np.ndarray, positions: int) -> np.ndarray:
    """In how many rounds each position is below the count."""
    rounds = np.bincount(counts.ravel(), minlength=positions + 1)
    return np.cumsum(rounds[::-1])[::-1][1:]
