"""A request that is run once more, a round at a time, so that its state can be looked at between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specjax.decoding.decoder import DecodeState
from specjax.decoding.loop import ChunkRecord, decode_chunk
from specjax.decoding.new_state import new_state
from specjax.decoding.seats import Newcomers, feed_rows, start_rows
from specjax.decoding.settings import stop_width_of
from specjax.runtime.model import Model
from specjax.runtime.newcomers import IDLE
from specjax.runtime.options import GenerateOptions
from specjax.runtime.pace import USUAL
from specjax.runtime.pieces import piece_size
from specjax.runtime.reading import of_row
from specjax.runtime.request import Job
from specjax.runtime.slots import slots_of


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


class Rerun:
    """One request, run by the programs that an engine runs, with the same arguments; alone, or beside others that begin
    with it.

    A depth that finds itself is the deepest one here, because what was chosen depended on a clock.

    Attributes:
        model, prompt, options, sequence: what is run, see `Model.request`.
        decoder: the static part of its programs.
        slots: positions that the state has room for.
        row: its seat.
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
            beside: the prompts of the other seats, which have the same options. In a batch of these prompts the seat of
                a prompt is its index, and so is the sequence.

        Raises:
            SpecjaxError: see `Model.decoder`.
        """
        self.model, self.prompt, self.options, self.sequence = model, list(prompt), options, sequence
        self.decoder = model.decoder(options)
        self.row = min(sequence, len(beside))
        self._prompts = [*beside[: self.row], self.prompt, *beside[self.row :]]
        self.slots = slots_of([model.request(each, options) for each in self._prompts], model.target)
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
        model, decoder, row = self.model, self.decoder, self.row
        request = model.request(self.prompt, self.options, sequence=self.sequence)
        most = min(model.target.context_length, self.slots)
        limits = [min(request.max_tokens, most - len(prompt)) for prompt in self._prompts]
        rooms = [self.slots - len(prompt) + 1 for prompt in self._prompts]
        job = Job(request, limits[row], room=rooms[row])
        width, seats = stop_width_of([request.settings]), range(len(self._prompts))
        idle = decoder.settings([IDLE] * len(seats), stop_width=width)
        state, logits = self._fed(new_state(decoder, model.params, idle, self.slots))
        streams = [self.sequence if seat == row else seat for seat in seats]
        budgets = [min(limit, room) - 1 for limit, room in zip(limits, rooms, strict=True)]
        rows, sequences, budget, dropped = (
            jnp.asarray(n, jnp.int32) for n in (seats, streams, budgets, [0] * len(seats))
        )
        settings = decoder.settings([request.settings] * len(seats), stop_width=width)
        state, record = start_rows(decoder, state, logits, Newcomers(rows, settings, sequences, budget, dropped))
        job.take(of_row(record, row, record.rounds.tokens))
        yield self._moment(0, (), len(self.prompt), state)
        number = 0
        while job.finish_reason is None and bool(state.active[row]):
            before, number = int(state.sequences.length[row]), number + 1
            pending = int(state.pending[row])
            rounds = self.options.rounds_per_chunk
            state, record = decode_chunk(decoder, model.params, state, rounds, np.int32(1), np.int32(USUAL))
            job.take(of_row(record, row, record.rounds.tokens))
            yield self._moment(number, (pending, *_drafts(record, row)), before, state)
        self._tokens = job.tokens

    def _fed(self, state: DecodeState) -> tuple[DecodeState, Float[Array, "B V"]]:
        """The state after all prompts, which are fed together in pieces, and the logits of their last tokens."""
        decoder, sequences, begin = self.decoder, state.sequences, 0
        lengths = np.array([len(prompt) for prompt in self._prompts], np.int32)
        logits = jnp.zeros((len(lengths), decoder.target.vocab_size))
        while begin < lengths.max():
            size = piece_size(int(lengths.max()) - begin)
            piece = np.zeros((len(lengths), size), np.int32)
            for tokens, prompt in zip(piece, self._prompts, strict=True):
                own = prompt[begin : begin + size]
                tokens[: len(own)] = own
            n_valid = np.clip(lengths - begin, 0, size)
            sequences, last = feed_rows(
                decoder.target, decoder.drafter, self.model.params, sequences, None, piece, n_valid
            )
            logits = jnp.where((n_valid > 0)[:, None], last, logits)
            begin += size
        return replace(state, sequences=sequences), logits

    def _moment(self, number: int, window: tuple[int, ...], before: int, state: DecodeState) -> Moment:
        own = jax.tree.map(lambda x: x[self.row : self.row + 1], state)
        length = int(own.sequences.length[0])
        kept = length - before if number else 0
        return Moment(number, window, kept, length, int(own.pending[0]), own)


def _drafts(record: ChunkRecord, row: int) -> list[int]:
    """The drafts of a row that were verified in a chunk's one round."""
    rounds = record.rounds
    return np.asarray(rounds.drafts)[0, row, : int(rounds.n_drafted[0, row])].tolist()
