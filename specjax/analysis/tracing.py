"""What drafting did, as newline-delimited JSON: one `mtp_draft` and one `mtp_accept` event per round and row.

The events and fields are those of the tracer in llama.cpp's MTP forks (`common/speculative.cpp`), so that their tools
read these files too:

- `mtp_draft`: `iter`, `path`, `seq_id`, `id_last` (the token that is drafted after), `h_idx` (the row of the last
  verification whose hidden state starts the draft; -1: the prompt's last row), `attn_pos` (position of `id_last`),
  `n_steps` (drafts to verify), `h_l2` (L2 norm of that hidden state), `drafts` (token ids);
- `mtp_accept`: `iter`, `n_accepted`, `n_drafted_prev` (drafts that were verified).

`path` is "sync" when drafts are verified, "skip-streak" when the row pauses after failures, and "skip-nsteps" when
there is nothing to draft: too few tokens are left, or the draft was shorter than asked for. Drafts are made within
their round, so that the path "lazy" of the forks does not occur. `iter` counts rounds of rows and joins the two events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from specjax.errors import SpecjaxError
from specjax.runtime.batch import Emission


class TraceWriter:
    """Writes the events of a batch; `add` is an observer for `TextStream.observers`.

    Every line is written whole, and what a chunk of rounds brought is flushed with the chunk.
    """

    def __init__(self, file: TextIO, prompt_lengths: Sequence[int], sequence: Sequence[int] | None = None) -> None:
        """
        Args:
            file: where lines go.
            prompt_lengths: tokens of each row's prompt.
            sequence: the name of each row (`seq_id`); default 0, 1, ...
        """
        self._file = file
        self._position = list(prompt_lengths)
        self._sequence = list(range(len(prompt_lengths)) if sequence is None else sequence)
        self._last = [-1] * len(prompt_lengths)
        self._hidden_row = [-1] * len(prompt_lengths)
        self._iteration = 0

    def add(self, emission: Emission) -> None:
        """Write the rounds of an emission; the first one, which has none, tells where the rows start."""
        if emission.record is None:
            self._last = [tokens[-1] for tokens in emission.tokens]
            return
        rounds = emission.record.rounds
        for index in range(int(emission.record.n_rounds)):
            for row in range(len(self._last)):
                if rounds.n_emitted[index, row]:
                    self._write_round(rounds, index, row)
        self._file.flush()

    def _write_round(self, rounds: Any, index: int, row: int) -> None:
        n_drafted, n_emitted = int(rounds.n_drafted[index, row]), int(rounds.n_emitted[index, row])
        path = "sync" if n_drafted else "skip-nsteps"
        if rounds.skipped[index, row]:
            path = "skip-streak"
        self._write(
            "mtp_draft",
            path=path,
            seq_id=self._sequence[row],
            id_last=self._last[row],
            h_idx=self._hidden_row[row],
            attn_pos=self._position[row],
            n_steps=n_drafted,
            h_l2=round(float(rounds.hidden_norm[index, row]), 4),
            drafts=rounds.drafts[index, row, :n_drafted].tolist(),
        )
        self._write("mtp_accept", n_accepted=int(rounds.n_accepted[index, row]), n_drafted_prev=n_drafted)
        self._iteration += 1
        self._last[row] = int(rounds.tokens[index, row, n_emitted - 1])
        self._hidden_row[row] = n_emitted - 1
        self._position[row] += n_emitted

    def _write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"evt": event, "iter": self._iteration, **fields}, separators=(",", ":"))
        self._file.write(line + "\n")


@dataclass
class TraceSummary:
    """What a trace says of drafting.

    Attributes:
        rounds: rounds of rows.
        drafted_by_position, accepted_by_position: drafts verified and accepted, position 1 first.
    """

    rounds: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the rounds that drafted this far, the share that accepted this far."""
        return [
            accepted / drafted
            for accepted, drafted in zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        ]


def read_events(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a trace file. A last line without its end (the writer was killed) is left out.

    Raises:
        SpecjaxError: a line is no event.
    """
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                event = json.loads(line)
                event["evt"], event["iter"]
            except (ValueError, TypeError, KeyError) as error:
                raise SpecjaxError(f"{path}:{number}: not an event of a trace: {line.strip()[:80]!r}") from error
            yield event


def summarize_trace(path: str | Path) -> TraceSummary:
    """Acceptance by position, from the drafts and the accepted counts joined on `iter`.

    Raises:
        SpecjaxError: a line is no event.
    """
    drafted: dict[int, int] = {}
    accepted: dict[int, int] = {}
    for event in read_events(path):
        if event["evt"] == "mtp_draft":
            drafted[event["iter"]] = len(event["drafts"])
        elif event["evt"] == "mtp_accept":
            accepted[event["iter"]] = event["n_accepted"]
    joined = [(drafted[iteration], accepted[iteration]) for iteration in drafted.keys() & accepted.keys()]
    longest = max((n_drafted for n_drafted, _ in joined), default=0)
    return TraceSummary(
        rounds=len(joined),
        drafted_by_position=[sum(n > position for n, _ in joined) for position in range(longest)],
        accepted_by_position=[sum(n > position for _, n in joined) for position in range(longest)],
    )
