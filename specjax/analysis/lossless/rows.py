"""One text in many rows, which differ in their random numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.leaning import no_counts
from specjax.decoding.new_state import beside, new_sequences, repeated, with_constraint
from specjax.decoding.seats import feed_rows
from specjax.decoding.settings import Settings
from specjax.models.protocol import Params
from specjax.runtime.slots import slots_for
from specjax.state import SequenceState

PIECE = 64
"""Tokens that are fed at once, also when texts are scored."""

MOST_LOGITS = 2**25
"""Logits that a batch of rows has at once."""


@dataclass(frozen=True)
class Sampling:
    """How texts are drawn.

    Attributes:
        settings: of all rows.
        length: tokens of each text, at most `PIECE`.
        count: texts after each prompt.
    """

    settings: Settings
    length: int
    count: int

    def batches(self, vocab_size: int) -> Iterator[np.ndarray]:
        """The random streams 0, 1, ... in batches of equal size, at least `count` of them."""
        most = int(np.clip(MOST_LOGITS // (vocab_size * self.length), 8, 128))
        number = -(-self.count // most)
        yield from np.arange(number * -(-self.count // number), dtype=np.int32).reshape(number, -1)


@dataclass(frozen=True, eq=False)
class Fed:
    """A prompt that has been fed but for its last token, in one row.

    Attributes:
        decoder: what fed it.
        params: of the models.
        prompt: its tokens.
        room: tokens that may follow.
    """

    decoder: Decoder
    params: Params
    prompt: Sequence[int]
    room: int

    @cached_property
    def state(self) -> SequenceState:
        """The state after all tokens but the last."""
        capacity = slots_for(len(self.prompt) + self.room + self.decoder.rows)
        state = new_sequences(self.decoder, self.params, 1, capacity, chunk=PIECE)
        models = self.decoder.target, self.decoder.drafter
        for begin in range(0, len(self.prompt) - 1, PIECE):
            piece = list(self.prompt[begin : min(begin + PIECE, len(self.prompt) - 1)])
            tokens = np.array([piece + [0] * (PIECE - len(piece))], np.int32)
            n_valid = np.array([len(piece)], np.int32)
            state, _ = feed_rows(*models, self.params, state, None, tokens, n_valid)
        return state

    def rows(self, count: int) -> SequenceState:
        """The state in so many rows."""
        return repeated(self.state, count)

    def starting(self, streams: np.ndarray, sampling: Sampling) -> DecodeState:
        """Rows that are about to decode, one for each random stream."""
        count = len(streams)
        pending, budget, streak, skip, dropped = (jnp.zeros((count,), jnp.int32) for _ in range(5))
        state = DecodeState(
            sequences=self.rows(count),
            pending=pending + self.prompt[-1],
            budget=budget + sampling.length,
            streak=streak,
            skip=skip > 0,
            sequence=jnp.asarray(streams),
            settings=self.decoder.settings([sampling.settings] * count),
            counts=no_counts(count, self.decoder.target.vocab_size) if sampling.settings.leaning else None,
            dropped=dropped,
        )
        state, constraint = beside(self.params, state), self.decoder.constraint([sampling.settings] * count)
        return state if constraint is None else with_constraint(state, self.params, constraint)
