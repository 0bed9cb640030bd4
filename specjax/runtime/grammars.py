"""The grammars of an engine's requests, and rows that join it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from specjax.decoding.arrays import to_device
from specjax.decoding.decoder import DecodeState
from specjax.decoding.grammar import Constraint, Grammar, GrammarRows, GrammarTables, places_for
from specjax.decoding.new_state import with_constraint
from specjax.models.protocol import Params
from specjax.runtime.request import Job

ROOM = 7
"""There is room for so many grammars from the start, or for one of each seat, so that further ones compile nothing."""


class GrammarShelf:
    """The grammars that rows of an engine use, by number. A number keeps its grammar as long as a row uses it.

    Attributes:
        shape: what programs depend on, see `GrammarTables.shape`; zeros as long as there are none.
    """

    def __init__(self, vocab_size: int, seats: int, room: tuple[int, int] = (0, 0)) -> None:
        """
        Args:
            vocab_size: V.
            seats: of the engine.
            room: the least shape. What fits into it needs no other programs.
        """
        self.shape = (0, 0)
        self._least = (room[0], max(places_for(min(seats, ROOM)), room[1]))
        self._vocab_size = vocab_size
        self._places: list[Grammar | None] = []

    def brought(self, state: DecodeState, jobs: Sequence[Job], params: Params) -> DecodeState:
        """The running state with the grammars of these jobs, in place of those that none of them has."""
        wanted = dict.fromkeys(job.request.settings.grammar for job in jobs)
        if not any(wanted):
            self._places, self.shape = [], (0, 0)
            return state if state.constraint is None else replace(state, constraint=None)
        missing = [grammar for grammar in wanted if grammar is not None and grammar not in self._places]
        if not missing:
            return state
        self._places = [grammar if grammar in wanted else None for grammar in self._places]
        for grammar in missing:
            if None in self._places:
                self._places[self._places.index(None)] = grammar
            else:
                self._places.append(grammar)
        tables = GrammarTables.of(self._places, self._vocab_size, least=self._least)
        self.shape = self._least = tables.shape
        rows = GrammarRows.free(len(state.pending)) if state.constraint is None else state.constraint.rows
        return with_constraint(state, params, Constraint(tables, rows))

    def rows(self, jobs: Mapping[int, Job], width: int) -> GrammarRows | None:
        """Where these jobs begin, by their columns among `width`; None as long as there are no grammars."""
        if not self._places:
            return None
        which, state, masks = np.zeros(width, np.int32), np.zeros(width, np.int32), np.ones(width, bool)
        for column, job in jobs.items():
            settings = job.request.settings
            masks[column] = settings.draft.masked
            if (grammar := settings.grammar) is not None:
                which[column] = self._places.index(grammar) + 1
                state[column] = grammar.offset(grammar.after(job.request.begun))
        return GrammarRows(*to_device((which, state, masks)))
