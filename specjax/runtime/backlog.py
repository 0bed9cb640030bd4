"""Tokens of rounds without drafts that the drafter has not been given, because it may not be asked again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

from specjax.decoding.unseen import BLOCKS, Unseen, Waiting, give_unseen, joined, nothing_waits, room_for
from specjax.models.protocol import Drafter, Params
from specjax.state import SequenceState

MOST_BYTES = 2**26
"""The most memory that waiting tokens take, unless a single chunk takes more."""


class Added(NamedTuple):
    """A chunk whose tokens wait.

    Attributes:
        rounds: that it may have had.
        rows: those that decoded.
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
        self._kept = np.ones(rows, bool)  # rows whose text is still the one whose tokens wait
        self._most = np.zeros(rows, int)  # the most tokens that can wait in each row
        self._epochs = np.zeros(rows, int)  # how often all that waited in a row was given or forgotten

    def __bool__(self) -> bool:
        """Whether any tokens wait for the drafter."""
        return bool(self._most.any())

    def add(self, unseen: Unseen, rounds: int, rows: Collection[int]) -> Added:
        """Let what was not seen of a chunk wait. There must be room for it. See `ran`.

        Args:
            unseen: of the chunk.
            rounds: that it has at most.
            rows: those that decode.
        """
        if self._waiting is None:
            self._waiting = self._empty(unseen)
        self._waiting = joined(self._waiting, unseen, self._kept.copy())
        self._kept[:] = True
        decode = np.isin(np.arange(len(self._most)), list(rows))
        self._most[decode] += rounds
        return Added(rounds, decode, self._epochs.copy())

    def ran(self, added: Added, rounds: int) -> None:
        """The chunk has had only so many rounds, which is known when it has been read."""
        same = added.rows & (added.epochs == self._epochs)
        self._most[same] -= added.rounds - rounds

    def _empty(self, unseen: Unseen) -> Waiting:
        rounds = len(unseen.tokens)
        columns = jax.tree.leaves((unseen.tokens, unseen.features))
        in_memory = MOST_BYTES // (sum(leaf.nbytes for leaf in columns) // rounds)
        return nothing_waits(unseen, room_for(max(rounds, min(self._slots, in_memory))))

    def forget(self, row: int) -> None:
        """Another text has the row."""
        self._kept[row], self._most[row] = False, 0
        self._epochs[row] += 1

    def has_room(self, rounds: int) -> bool:
        """Whether the tokens of another chunk of so many rounds can wait as well.

        It writes behind what waits in all rows, also in those that do not decode.
        """
        whole = -(-rounds // BLOCKS[0]) * BLOCKS[0]
        return self._waiting is None or self._most.max() + whole <= self._waiting.tokens.shape[1]

    def given(self, drafter: Drafter, params: Params, state: SequenceState) -> SequenceState:
        """The state, which is consumed, after its drafter has been given everything."""
        if self._waiting is not None and self:
            state = give_unseen(drafter, params, state, self._waiting, self._kept.copy())
            self._kept[:], self._most[:] = False, 0
            self._epochs += 1
        return state

    def build(self, drafter: Drafter, params: Params, state: SequenceState, unseen: Unseen) -> SequenceState:
        """Build the programs for chunks like this one: they will be needed without warning. The state is consumed."""
        nobody = np.zeros(len(self._kept), bool)
        waiting = joined(self._empty(unseen), unseen, nobody)
        return give_unseen(drafter, params, state, waiting, nobody)
