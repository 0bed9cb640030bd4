"""A request that is run once more, a round at a time, so that its state can be looked at between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from specjax.decoding.decoder import DecodeState
from specjax.decoding.loop import ChunkRecord, decode_chunk
from specjax.decoding.new_state import new_state
from specjax.decoding.seats import Newcomers, start_rows
from specjax.decoding.settings import stop_width_of
from specjax.runtime.engine import IDLE, slots_of
from specjax.runtime.feeding import feed
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.pace import USUAL
from specjax.runtime.reading import of_row
from specjax.runtime.request import Job


@dataclass(frozen=True)
class Moment:
    """Where a run stands after its prompt, or after a round.

    Attributes:
        number: of the round, from 1; 0 after the prompt.
        window: what the round verified: the token that was pending, and the drafts after it.
        kept: how many tokens of the window were committed.
        length: committed tokens.
        pending: the token at position `length`, chosen but not fed.
        state: valid until the next round, which consumes it.
    """

    number: int
    window: tuple[int, ...]
    kept: int
    length: int
    pending: int
    state: DecodeState


class Rerun:
    """One request in a seat of its own, run by the programs that an engine runs, with the same arguments.

    A depth that finds itself is the deepest one here, because what was chosen depended on a clock.

    Attributes:
        model, prompt, options, sequence: what is run, see `Model.request`.
        decoder: the static part of its programs.
        slots: positions that the state has room for.
    """

    def __init__(self, model: Model, prompt: Sequence[int], options: GenerateOptions, sequence: int = 0) -> None:
        """
        Args:
            model, prompt, options, sequence: see the attributes.

        Raises:
            SpecjaxError: see `Model.decoder`.
        """
        self.model, self.prompt, self.options, self.sequence = model, list(prompt), options, sequence
        self.decoder = model.decoder(options)
        self.slots = slots_of([model.request(self.prompt, options)], model.target)
        self._tokens: list[int] | None = None

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
        model, decoder = self.model, self.decoder
        request = model.request(self.prompt, self.options, sequence=self.sequence)
        room = self.slots - len(self.prompt) + 1
        limit = min(request.max_tokens, min(model.target.context_length, self.slots) - len(self.prompt))
        job = Job(request, limit, room=room)
        width = stop_width_of([request.settings])
        state = new_state(decoder, model.params, decoder.settings([IDLE], stop_width=width), self.slots)
        sequences, logits = feed(decoder, model.params, state.sequences, self.prompt)
        state = replace(state, sequences=sequences)
        numbers = (jnp.asarray([n], jnp.int32) for n in (0, self.sequence, min(limit, room) - 1, 0))
        row, sequence, budget, dropped = numbers
        settings = decoder.settings([request.settings], stop_width=width)
        state, record = start_rows(decoder, state, logits[None], Newcomers(row, settings, sequence, budget, dropped))
        job.take(of_row(record, 0, record.rounds.tokens))
        yield self._moment(0, (), len(self.prompt), state)
        number = 0
        while job.finish_reason is None and bool(state.active[0]):
            before, number = int(state.sequences.length[0]), number + 1
            pending = int(state.pending[0])
            most = self.options.rounds_per_chunk
            state, record = decode_chunk(decoder, model.params, state, most, np.int32(1), np.int32(USUAL))
            job.take(of_row(record, 0, record.rounds.tokens))
            yield self._moment(number, (pending, *_drafts(record)), before, state)
        self._tokens = job.tokens

    @staticmethod
    def _moment(number: int, window: tuple[int, ...], before: int, state: DecodeState) -> Moment:
        length = int(state.sequences.length[0])
        kept = length - before if number else 0
        return Moment(number, window, kept, length, int(state.pending[0]), state)


def _drafts(record: ChunkRecord) -> list[int]:
    """The drafts of a chunk's one round that were verified."""
    rounds = record.rounds
    return np.asarray(rounds.drafts)[0, 0, : int(rounds.n_drafted[0, 0])].tolist()
