"""An engine whose programs can be built before the first request comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp

from specjax.decoding.settings import Room
from specjax.runtime.engine import Engine
from specjax.runtime.pieces import Piece, shapes_of_pieces
from specjax.runtime.slots import kept_sizes
from specjax.state import keep_rows, put_rows, take_rows


class WarmEngine(Engine):
    """An engine that does not keep requests waiting for its programs."""

    def warm(self, room: Room) -> Iterator[str]:
        """Build the programs that requests will need, but for those of grammars and biases. The engine must be idle.

        Args:
            room: for the settings of requests.

        Yields:
            What is built next.
        """
        self._prepare_state(room)
        pieces: dict[int, Piece] = {}  # one of each width
        for width, size in shapes_of_pieces(self.decoder, self.state.sequences):
            yield f"prompts, {width} times {size} tokens"
            pieces[width] = Piece.empty(self.seats, width, size)
            self._prepare_feeding(pieces[width])
        for piece in pieces.values():
            sequences, logits = self._feed_rows(piece)
            self._state = replace(self.state, sequences=sequences)
            self._texts.build(logits)
        for depth in self._rounds.depths:
            yield f"rounds of {depth} drafts"
            self._state = self._rounds.build(self.decoder, self.params, self.state, depth, key=self._key())
        yield "copies of texts"
        self._set_budgets({0: 0})
        nobody, first = jnp.asarray([self.seats], jnp.int32), jnp.asarray([0])
        jax.block_until_ready(keep_rows(self.state.sequences, first))
        copies = [self._texts.empty, *(take_rows(self.state.sequences, first, size) for size in kept_sizes(self.slots))]
        for copy in copies:
            jax.block_until_ready(jax.tree.map(jnp.copy, copy))
            self._state = replace(self.state, sequences=put_rows(self.state.sequences, copy, nobody))
