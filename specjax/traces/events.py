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
from typing import Any, NamedTuple

from specjax.errors import SpecjaxError


class Round(NamedTuple):
    """A round of one text, see `specjax.traces.trace.Trace` for the fields; `drafts` are those that were verified."""

    text: int
    last: int
    hidden_row: int
    position: int
    hidden_norm: float
    drafts: list[int]
    n_accepted: int
    skipped: bool


def events_of(iteration: int, of_round: Round) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two events of a round."""
    n_drafted = len(of_round.drafts)
    path = "sync" if n_drafted else "skip-nsteps"
    draft = {
        "evt": "mtp_draft",
        "iter": iteration,
        "path": "skip-streak" if of_round.skipped else path,
        "seq_id": of_round.text,
        "id_last": of_round.last,
        "h_idx": of_round.hidden_row,
        "attn_pos": of_round.position,
        "n_steps": n_drafted,
        "h_l2": round(of_round.hidden_norm, 4),
        "drafts": of_round.drafts,
    }
    return draft, {
        "evt": "mtp_accept",
        "iter": iteration,
        "n_accepted": of_round.n_accepted,
        "n_drafted_prev": n_drafted,
    }


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
