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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import jax

from specjax.decoding.record import RoundRecord
from specjax.errors import SpecjaxError
from specjax.runtime.request import Job, Update


@dataclass
class _Row:
    """Where a job stands: its name, its last token with its position, and the row that the next draft starts from."""

    name: int
    position: int
    last: int = -1
    hidden_row: int = -1


class TraceWriter:
    """Writes the events of jobs; `add` is an observer for `TextStream.observers`.

    Every line is written whole, and what a chunk of rounds brought is flushed with the chunk.
    """

    def __init__(self, file: TextIO) -> None:
        """
        Args:
            file: where lines go.
        """
        self._file = file
        self._rows: dict[Job, _Row] = {}
        self._iteration = 0

    def add(self, update: Update) -> None:
        """Write the rounds of an update; the first one of a job, which has none, tells where the job starts."""
        if update.record is None:
            request = update.job.request
            self._rows[update.job] = _Row(request.sequence, len(request.prompt), last=update.tokens[-1])
            return
        rounds, row = update.record.rounds, self._rows[update.job]
        for index in range(int(update.record.n_rounds)):
            if rounds.n_emitted[index, update.row]:
                self._write_round(jax.tree.map(lambda x, i=index: x[i, update.row], rounds), row)
        self._file.flush()

    def _write_round(self, round_: RoundRecord, row: _Row) -> None:
        n_drafted, n_emitted = int(round_.n_drafted), int(round_.n_emitted)
        path = "sync" if n_drafted else "skip-nsteps"
        if round_.skipped:
            path = "skip-streak"
        self._write(
            "mtp_draft",
            path=path,
            seq_id=row.name,
            id_last=row.last,
            h_idx=row.hidden_row,
            attn_pos=row.position,
            n_steps=n_drafted,
            h_l2=round(float(round_.hidden_norm), 4),
            drafts=round_.drafts[:n_drafted].tolist(),
        )
        self._write("mtp_accept", n_accepted=int(round_.n_accepted), n_drafted_prev=n_drafted)
        self._iteration += 1
        row.last = int(round_.tokens[n_emitted - 1])
        row.hidden_row = n_emitted - 1
        row.position += n_emitted

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
