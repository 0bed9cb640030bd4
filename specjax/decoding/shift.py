"""Context shift: a sequence drops its oldest tokens, to continue in the slots that it has."""

from __future__ import annotations

from functools import partial

import jax
from jaxtyping import Array, Int

from specjax.decoding.decoder import Decoder
from specjax.mesh.shards import on_shards
from specjax.state import SequenceState, Shift


def cannot_shift(decoder: Decoder) -> str | None:
    """Why tokens cannot be dropped from the states of a decoder, as a clause; None if they can."""
    return jax.eval_shape(partial(decoder.init_state, 1, 1)).cannot_shift


@partial(jax.jit, donate_argnames="state")
def shift_context(state: SequenceState, keep: Int[Array, "B"], drop: Int[Array, "B"]) -> SequenceState:
    """Drop tokens from every part of the state at once.

    The caller has checked that the state can drop tokens, and that enough tokens are left after those dropped: as many
    as a round has rows, and the window more where a ring has gone round (see `KVCache.shift`).

    Args:
        state: consumed.
        keep: tokens at the start that stay.
        drop: tokens after these that go; 0 in rows that stay as they are.
    """

    def run(parts: int, state: SequenceState, keep: Array, drop: Array) -> SequenceState:
        del parts
        return state.shift(Shift(keep, drop, state.length))

    return on_shards(run, state, keep, drop, out=lambda state, *_: state)
