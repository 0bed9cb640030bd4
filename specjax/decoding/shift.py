"""Context shift: a sequence gives up its oldest tokens, so that it can go on in the slots that it has."""

from __future__ import annotations

from functools import partial

import jax
from jaxtyping import Array, Int

from specjax.models.protocol import Drafter, Params, Target
from specjax.state import SequenceState, Shift


def obstacle(target: Target, drafter: Drafter | None) -> str | None:
    """Why a state of these models cannot be shifted; None if it can."""
    return target.cannot_shift or (drafter.cannot_shift if drafter else None)


@partial(jax.jit, static_argnames=("target", "drafter"), donate_argnames="state")
def shift_context(
    target: Target,
    drafter: Drafter | None,
    params: Params,
    state: SequenceState,
    keep: Int[Array, "B"],
    drop: Int[Array, "B"],
) -> SequenceState:
    """Drop tokens from every part of the state at once.

    The caller has checked that there is no `obstacle`, and that enough tokens are left after those dropped: as many as
    a round has rows, and the window more where a ring has gone round (see `KVCache.shifted`).

    Args:
        target, drafter, params: whose state it is.
        state: consumed.
        keep: tokens at the start that stay.
        drop: tokens after these that go; 0 in rows that stay as they are.
    """
    shift = Shift(keep, drop, state.length)
    own = drafter.shift(params, state.drafter, shift) if drafter else state.drafter
    return SequenceState(target.shift(params, state.layers, shift), own, shift.left)
