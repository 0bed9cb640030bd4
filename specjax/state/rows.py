"""Single sequences on their way from state to state: copies that can be kept, and put into any row of any batch."""

from __future__ import annotations

from functools import partial

import jax
from jaxtyping import Array, Int

from specjax.mesh.rows import Sharing, unsplit
from specjax.mesh.shards import on_shards
from specjax.state.hybrid import SequenceState


@partial(jax.jit, static_argnames="slots")
def take_rows(state: SequenceState, rows: Int[Array, "n"], slots: int) -> SequenceState:
    """A copy of n sequences with all that they carry: caches, rings, recurrent states and the drafter's state.

    Args:
        state: it stays as it is, and the copy shares no memory with it.
        rows: where the sequences stand.
        slots: of caches that hold every position, only so many slots are copied; at least the sequences' lengths.
            Each number compiles a program of its own, so round it up.
    """
    return _taken(state.used(slots), rows)


@jax.jit
def keep_rows(state: SequenceState, rows: Int[Array, "n"]) -> SequenceState:
    """What n sequences keep in order to come back to this point, see `Part.kept`; a copy."""
    return _taken(state.kept(), rows)


def _taken(state: SequenceState, rows: Int[Array, "n"]) -> SequenceState:
    sharing = Sharing.of(state)

    def run(parts: int, state: SequenceState, rows: Array) -> SequenceState:
        del parts
        return jax.tree.map(lambda x: sharing.taken(x, rows), state)

    return on_shards(run, state, rows, out=lambda state, rows: unsplit(state))


@partial(jax.jit, donate_argnames="state")
def put_rows(state: SequenceState, rows_state: SequenceState, rows: Int[Array, "n"]) -> SequenceState:
    """The state with other sequences in n of its rows; whatever these held before is gone.

    The other state may have caches of another capacity, as long as its sequences fit. Slots that it has no values for
    are set to zero.

    Args:
        state: consumed.
        rows_state: n sequences, made for the same models and the same number of drafts. It stays as it is.
        rows: where they go. Rows out of range are left out, so that calls can be padded.
    """
    sharing = Sharing.of(state)

    def run(parts: int, state: SequenceState, rows_state: SequenceState, rows: Array) -> SequenceState:
        del parts
        return state.put(rows_state, sharing.at(rows, len(state.length)))

    return on_shards(run, state, rows_state, rows, out=lambda state, *_: state)
