"""Tokens of rounds without drafts that the drafter has not been given, because it may not be asked again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import beside
from specjax.decoding.unseen import Waiting, give_unseen, room_for
from specjax.models.protocol import Drafter, Params
from specjax.state import SequenceState

MOST_BYTES = 2**26
"""The most memory that waiting tokens take, unless a single chunk takes more."""


class Added(NamedTuple):
    """A chunk whose tokens wait.

    Attributes:
        rounds: that it may have had.
        rows: those in which tokens wait.
        epochs: of all rows at that time, see `Backlog`.
    """

    rounds: int
    rows: Bool[np.ndarray, "B"]
    epochs: Int[np.ndarray, "B"]


class Backlog:
    """What waits to be given to the drafter of a running state.

    A row's tokens are forgotten when its text has ended and another one takes the row. So drafters that are not asked
    cost nothing for texts that nobody goes on with.
    """

    def __init__(self, rows: int, slots: int) -> None:
        """
        Args:
            rows, slots: B and S of the state.
        """
        self._slots = slots
        self._waiting: Waiting | None = None
        self._left = np.zeros(rows, bool)  # rows whose text is no longer the one whose tokens wait
        self._most = np.zeros(rows, int)  # the most rounds since the first one whose token waits, by row
        self._epochs = np.zeros(rows, int)  # how often all that waited in a row was given or forgotten

    def __bool__(self) -> bool:
        """Whether any tokens wait for the drafter."""
        return bool(self._most.any())

    def taken(self, decoder: Decoder, params: Params, most: int) -> tuple[Waiting, Bool[np.ndarray, "B"]]:
        """What waits, for a chunk that consumes it, and the rows that have been left. What the chunk returns belongs to
        `put`.

        Args:
            decoder, params: those of the chunk.
            most: the most rounds that chunks of the decoder have.
        """
        if self._waiting is None:
            self._waiting = self._empty(decoder, params, most)
        return self._waiting, self._taken_left()

    def put(self, waiting: Waiting, rounds: int, rows: Collection[int]) -> Added:
        """Take back what waits after a chunk. There must have been room for it. See `ran`.

        Args:
            waiting: as the chunk returned it.
            rounds: that it has at most.
            rows: those that decode.
        """
        self._waiting = waiting
        grows = self._most > 0
        grows[list(rows)] = True
        self._most[grows] += rounds
        return Added(rounds, grows, self._epochs.copy())

    def ran(self, added: Added, rounds: int) -> None:
        """The chunk has had only so many rounds, which is known when it has been read."""
        same = added.rows & (added.epochs == self._epochs)
        self._most[same] -= added.rounds - rounds

    def forget(self, row: int) -> None:
        """Another text has the row."""
        self._left[row], self._most[row] = True, 0
        self._epochs[row] += 1

    def has_room(self, rounds: int) -> bool:
        """Whether the tokens of another chunk of so many rounds can wait as well.

        A round writes to all rows, also to those that do not decode.
        """
        return self._waiting is None or int(self._most.max()) + rounds <= self._waiting.room

    def given(self, drafter: Drafter, params: Params, state: SequenceState) -> tuple[SequenceState, jax.Array]:
        """The state, which is consumed, after its drafter has been given everything; and what is ready when it has.

        Something must wait.
        """
        assert self._waiting is not None
        state, self._waiting = give_unseen(drafter, params, state, self._waiting, self._taken_left())
        self._most[:] = 0
        self._epochs += 1
        return state, self._waiting.tokens

    def build(self, decoder: Decoder, params: Params, state: SequenceState) -> SequenceState:
        """Build the program that gives what waits: it will be needed without warning. The state is consumed."""
        assert self._waiting is not None
        assert decoder.drafter is not None
        waiting = jax.tree.map(jnp.zeros_like, self._waiting)
        return give_unseen(decoder.drafter, params, state, waiting, np.ones(len(self._left), bool))[0]

    def _empty(self, decoder: Decoder, params: Params, most: int) -> Waiting:
        rows = len(self._left)
        of_round = jax.eval_shape(lambda: Waiting.none(decoder, rows, 1))
        in_memory = MOST_BYTES // sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(of_round))
        of_text = self._slots + 2 * most  # two chunks are under way, and count as long as they may become
        return beside(params, Waiting.none(decoder, rows, room_for(max(most, min(of_text, in_memory)))))

    def _taken_left(self) -> Bool[np.ndarray, "B"]:
        """The rows whose texts have been left. A program may read the array later, so the next one is another."""
        left, self._left = self._left, np.zeros(len(self._left), bool)
        return left
