"""A request that is run once more, a round at a time, so that its state can be looked at between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Int

from specjax.decoding.decoder import DecodeState
from specjax.decoding.loop import ChunkRecord
from specjax.mesh.hosts import fetched
from specjax.mesh.rows import Sharing, unsplit
from specjax.mesh.shards import on_shards
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.request import Job, Request
from specjax.runtime.slots import slots_of
from specjax.runtime.stream import started


@dataclass(frozen=True)
class Moment:
    """Where a run stands after its prompt, or after a round.

    Attributes:
        number: of the round, from 1; 0 after the prompt.
        window: what the round verified: the token that was pending, and the drafts after it.
        kept: how many tokens of the window were committed.
        length: committed tokens.
        pending: the token at position `length`, chosen but not fed.
        active: whether it goes on from here.
        state: of the request's row alone, on every row of a mesh.
    """

    number: int
    window: tuple[int, ...]
    kept: int
    length: int
    pending: int
    active: bool
    state: DecodeState

    @property
    def grammar_state(self) -> int | None:
        """Where the row stands in its grammar, see `GrammarTables`; None without a grammar."""
        return None if self.state.constraint is None else _only(self.state.constraint.rows.state)


class Rerun:
    """One request, run by an engine as a call runs it; alone, or beside the others of its batch.

    Its rows, its pieces of prompts and the states that it goes on from are those of the call: prompts that start alike
    are computed once here too. Only its chunks have one round each. The others of the batch begin to decode when the
    request does. A depth that finds itself is the deepest one here, because what was chosen depended on a clock.

    Attributes:
        model, prompt, options, sequence: what is run, see `Model.request`.
        decoder: the static part of its programs.
        grammar: what its text is held to, if it is.
        slots: positions that the state has room for.
    """

    def __init__(
        self,
        model: Model,
        prompt: Sequence[int],
        options: GenerateOptions,
        sequence: int = 0,
        beside: Sequence[Sequence[int]] = (),
    ) -> None:
        """
        Args:
            model, prompt, options, sequence: see the attributes.
            beside: the prompts of the other requests, which have the same options. In a batch of these prompts the
                sequence of a prompt is its index.

        Raises:
            SpecjaxError: see `Model.decoder`.
        """
        self.model, self.prompt, self.options, self.sequence = model, list(prompt), options, sequence
        self.decoder, self.grammar = model.decoder(options), model.grammar(options)
        fixed = replace(options.draft_config(model.drafter is not None), auto=False)
        self._options = replace(options, draft=replace(fixed, n_max=self.decoder.max_drafts))
        self._own = own = min(sequence, len(beside))
        self._streams = [*range(own), sequence, *range(own + 1, len(beside) + 1)]
        self._prompts = [*beside[:own], self.prompt, *beside[own:]]
        self.slots = slots_of(self._requests(), model.target)
        self._tokens: list[int] | None = None

    def _requests(self) -> list[Request]:
        """New ones for each run, because they count the characters of stop strings."""
        pairs = zip(self._prompts, self._streams, strict=True)
        return [self.model.request(prompt, self._options, sequence=stream) for prompt, stream in pairs]

    @property
    def tokens(self) -> list[int]:
        """What the request emits; it is run if it has not been run."""
        if self._tokens is None:
            for _ in self.moments():
                pass
        assert self._tokens is not None
        return self._tokens

    def moments(self) -> Iterator[Moment]:
        """Run from the beginning, and stop after the prompt and after each round. Every run says the same."""
        engine, jobs = started(self.model, self._requests(), [self._options] * len(self._prompts))
        job = jobs[self._own]
        while not job.fed:
            for _ in engine.step(rounds=0):
                pass
        moment = _moment(0, (), len(self.prompt), job, engine.state)
        yield moment
        while job.finish_reason is None:
            updates = [*engine.step(rounds=1), *engine.step(rounds=0)]  # the second reads what the first has started
            record = next((each.record for each in updates if each.job is job and each.record is not None), None)
            if record is None:
                break  # all slots are taken
            window = (moment.pending, *_drafts(record, job))
            moment = _moment(moment.number + 1, window, moment.length, job, engine.state)
            yield moment
        self._tokens = job.tokens


def _moment(number: int, window: tuple[int, ...], before: int, job: Job, state: DecodeState) -> Moment:
    assert job.row is not None
    own = _row_of(state, np.array([job.row], np.int32))
    length = _only(own.sequences.length)
    kept = length - before if number else 0
    return Moment(number, window, kept, length, _only(own.pending), _only(own.budget) > 0, own)


def _only(x: Int[Array, "1"]) -> int:
    return int(fetched(x)[0])


@jax.jit
def _row_of(state: DecodeState, rows: Int[Array, "1"]) -> DecodeState:
    """A copy of one row of a running state; every row of a mesh has it."""
    sharing = Sharing.of(state)

    def run(parts: int, state: DecodeState, rows: Array) -> DecodeState:
        del parts
        taken = partial(jax.tree.map, lambda x: sharing.taken(x, rows))
        constraint = None if state.constraint is None else replace(state.constraint, rows=taken(state.constraint.rows))
        return replace(taken(replace(state, constraint=None)), constraint=constraint)

    return on_shards(run, state, rows, out=lambda state, rows: unsplit(state))


def _drafts(record: ChunkRecord, job: Job) -> list[int]:
    """The drafts of a job that were verified in a chunk's one round."""
    drafts, n_drafted = (fetched(x) for x in (record.rounds.drafts, record.rounds.n_drafted))
    return drafts[0, job.row, : n_drafted[0, job.row]].tolist()
