"""A request that is run once more, a round at a time, so that its state can be looked at between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from specjax.decoding.decoder import DecodeState
from specjax.decoding.loop import ChunkRecord
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
        state: of the request's row alone.
    """

    number: int
    window: tuple[int, ...]
    kept: int
    length: int
    pending: int
    state: DecodeState

    @property
    def grammar_state(self) -> int | None:
        """Where the row stands in its grammar, see `GrammarTables`; None without a grammar."""
        return None if self.state.constraint is None else int(self.state.constraint.rows.state[0])


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
    here, constraint = slice(job.row, job.row + 1), state.constraint
    own = jax.tree.map(lambda x: x[here], replace(state, constraint=None))
    if constraint is not None:
        own = replace(own, constraint=replace(constraint, rows=jax.tree.map(lambda x: x[here], constraint.rows)))
    length = int(own.sequences.length[0])
    kept = length - before if number else 0
    return Moment(number, window, kept, length, int(own.pending[0]), own)


def _drafts(record: ChunkRecord, job: Job) -> list[int]:
    """The drafts of a job that were verified in a chunk's one round."""
    rounds = record.rounds
    return np.asarray(rounds.drafts)[0, job.row, : int(rounds.n_drafted[0, job.row])].tolist()
