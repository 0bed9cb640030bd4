"""Chunks without drafts whose tokens the drafter has not been given, because it may not be asked again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Bool

from specjax.decoding.unseen import Unseen, give_unseen
from specjax.models.protocol import Drafter, Params
from specjax.state import SequenceState

MOST_BYTES = 2**26
"""The most memory that waiting chunks take."""


@dataclass
class _Chunk:
    unseen: Unseen
    rows: Bool[np.ndarray, "B"]  # whose text it still is


@dataclass
class Backlog:
    """What waits to be given to the drafter of a running state, in order.

    A row's tokens are forgotten when its text has ended and another one takes the row. So drafters that are not asked
    cost nothing for texts that nobody goes on with.
    """

    _chunks: deque[_Chunk] = field(default_factory=deque)

    def add(self, unseen: Unseen) -> None:
        """Let what was not seen of a chunk wait."""
        self._chunks.append(_Chunk(unseen, np.ones(unseen.length.shape, bool)))

    def forget(self, row: int) -> None:
        """Another text has the row."""
        for chunk in self._chunks:
            chunk.rows[row] = False
        while self._chunks and not self._chunks[0].rows.any():
            self._chunks.popleft()

    @property
    def full(self) -> bool:
        """Whether no more should wait."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves([chunk.unseen for chunk in self._chunks])) > MOST_BYTES

    def __len__(self) -> int:
        return len(self._chunks)

    def given(self, drafter: Drafter, params: Params, state: SequenceState) -> SequenceState:
        """The state, which is consumed, after its drafter has been given everything."""
        while self._chunks:
            chunk = self._chunks.popleft()
            state = give_unseen(drafter, params, state, chunk.unseen, chunk.rows)
        return state
