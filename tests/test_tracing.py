from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specjax.decoding.loop import ChunkRecord
from specjax.decoding.record import RoundRecord
from specjax.decoding.settings import Settings
from specjax.errors import SpecjaxError
from specjax.runtime.recording import TraceWriter
from specjax.runtime.request import Job, Request, Update
from specjax.traces.events import read_events, summarize_trace

DRAFT_FIELDS = ["evt", "iter", "path", "seq_id", "id_last", "h_idx", "attn_pos", "n_steps", "h_l2", "drafts"]
ACCEPT_FIELDS = ["evt", "iter", "n_accepted", "n_drafted_prev"]


def job(sequence: int, prompt_length: int, first: int) -> Job:
    request = Request((1,) * prompt_length, 9, Settings(), sequence)
    return Job(request, limit=9, room=99, tokens=[first])


def updates(jobs: list[Job], *rounds: list[tuple[list[int], int, list[int], bool]]) -> Iterator[Update]:
    """A chunk of rounds; a round has (drafts, accepted, emitted, skipped) of each job. One more round was not run."""
    shape = (len(rounds) + 1, len(jobs))
    tokens, drafts = np.full((*shape, 3), -1), np.full((*shape, 2), 99)
    counts = {name: np.full(shape, 2) for name in ("n_emitted", "n_drafted", "n_accepted")}
    skipped, norms = np.zeros(shape, bool), np.full(shape, 1.25)
    for i, rows_of_round in enumerate(rounds):
        for row, (drafted, accepted, emitted, skip) in enumerate(rows_of_round):
            drafts[i, row, : len(drafted)] = drafted
            tokens[i, row, : len(emitted)] = emitted
            for name, value in zip(counts, (len(emitted), len(drafted), accepted), strict=True):
                counts[name][i, row] = value
            skipped[i, row] = skip
    nothing = dict.fromkeys(("margin", "logprob", "top_logprobs"))
    record = RoundRecord(
        tokens=tokens,
        drafts=drafts,
        skipped=skipped,
        hidden_norm=norms,
        finite=~skipped,
        source=np.zeros(shape, int),
        **counts,
        **nothing,
    )
    for row, each in enumerate(jobs):
        yield Update(each, [], ChunkRecord(np.int32(len(rounds)), record), row)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path, jobs = tmp_path / "trace.ndjson", [job(4, 10, 50), job(7, 20, 60)]
    with path.open("w") as file:
        writer = TraceWriter(file)
        for each, token in zip(jobs, (50, 60), strict=True):
            writer.add(Update(each, [token], None, 0))
        for chunk in (
            [[([1, 2], 1, [1, 51], False), ([3, 4], 2, [3, 4, 61], False)]],
            [[([5], 0, [52], False), ([], 0, [], False)], [([], 0, [53], True), ([], 0, [], False)]],
            [[([], 0, [54], False), ([], 0, [], False)]],
        ):
            for update in updates(jobs, *chunk):
                writer.add(update)
    return path


def test_events_have_exactly_the_fields_of_the_format(trace: Path) -> None:
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [list(event) for event in events] == [DRAFT_FIELDS, ACCEPT_FIELDS] * 5
    assert [event["evt"] for event in events] == ["mtp_draft", "mtp_accept"] * 5
    assert [event["iter"] for event in events] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert events == list(read_events(trace))


def test_drafts_follow_the_tokens_of_their_sequence(trace: Path) -> None:
    drafts = [event for event in read_events(trace) if event["evt"] == "mtp_draft"]
    of_row = [event for event in drafts if event["seq_id"] == 4]
    assert [event["id_last"] for event in of_row] == [50, 51, 52, 53]
    assert [event["attn_pos"] for event in of_row] == [10, 12, 13, 14]
    assert [event["h_idx"] for event in of_row] == [-1, 1, 0, 0]
    assert [event["drafts"] for event in of_row] == [[1, 2], [5], [], []]
    assert [event["n_steps"] for event in of_row] == [2, 1, 0, 0]
    assert [event["path"] for event in of_row] == ["sync", "sync", "skip-streak", "skip-nsteps"]
    assert [event["seq_id"] for event in drafts].count(7) == 1


def test_acceptance_by_position_is_joined_on_iter(trace: Path) -> None:
    summary = summarize_trace(trace)
    assert summary.rounds == 5
    assert summary.drafted_by_position == [3, 2]
    assert summary.accepted_by_position == [2, 1]
    assert summary.acceptance_by_position == [2 / 3, 1 / 2]


def test_a_trace_that_was_cut_off_is_read_to_its_last_whole_line(trace: Path, tmp_path: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-10])
    assert summarize_trace(trace).rounds == 4
    other = tmp_path / "other"
    other.write_text('{"evt":"mtp_accept"}\n')
    with pytest.raises(SpecjaxError, match=r"other:1: not an event"):
        list(read_events(other))


def test_an_empty_trace_has_no_acceptance(tmp_path: Path) -> None:
    path = tmp_path / "trace.ndjson"
    TraceWriter(io.StringIO()).add(Update(job(0, 1, 5), [5], None, 0))
    path.write_text("")
    assert summarize_trace(path).acceptance_by_position == []
