"""The programs of an engine, traced by shapes: for those who want to know what is in them before they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.new_state import outline_of_state
from specjax.decoding.seats import feed_rows
from specjax.decoding.settings import DraftConfig, Settings
from specjax.mesh.plan import AnyMesh
from specjax.models.protocol import Params
from specjax.runtime.pieces import PIECE_SIZES

ROUNDS = 4
"""Rounds of a chunk where their number does not matter."""


@dataclass(frozen=True)
class Programs:
    """The programs of an engine, by shapes.

    Attributes:
        decoder: as the engine has it.
        params: arrays or their shapes.
        mesh: where they lie; None for one device.
    """

    decoder: Decoder
    params: Params
    mesh: AnyMesh | None

    def state(self, batch: int, slots: int) -> DecodeState:
        """The shapes of a running state of so many sequences, with room for so many tokens each."""
        wishes = Settings(draft=DraftConfig(n_max=self.decoder.max_drafts))
        return outline_of_state(self.decoder, self.decoder.settings([wishes] * batch), slots, self.mesh)

    def rounds(self, state: DecodeState, *, rounds: int = ROUNDS) -> jax.stages.Traced:
        """The program of a chunk of rounds."""
        return decode_chunk.trace(self.decoder, self.params, state, rounds, np.int32(rounds), np.int32(rounds))

    def feeding(
        self, state: DecodeState, batch: int, *, columns: int, tokens: int = PIECE_SIZES[-1]
    ) -> jax.stages.Traced:
        """A piece of prompts that is fed to `columns` of the sequences."""
        rows = None if columns == batch else jax.ShapeDtypeStruct((columns,), jnp.int32)
        piece = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((columns, tokens), (columns,)))
        models: tuple[Any, Any] = self.decoder.target, self.decoder.drafter
        return feed_rows.trace(*models, self.params, state.sequences, rows, *piece)
