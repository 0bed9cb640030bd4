"""The jitted loop over rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.packing import Packing
from specjax.decoding.record import RoundRecord
from specjax.decoding.round import decode_round
from specjax.decoding.unseen import Waiting, room_for
from specjax.mesh.rows import Sharing, anywhere
from specjax.mesh.shards import REPLICATED, ROWS, lying, on_shards
from specjax.models.protocol import Features, Params


@struct.dataclass
class ChunkRecord:
    """The records of up to `rounds` rounds, stacked; only the first `n_rounds` were run.

    Attributes:
        n_rounds, rounds: see there.
        waiting: what the drafter has not been given; None if it was given all, or there is none.
    """

    n_rounds: Int[Array, ""]
    rounds: RoundRecord
    waiting: Waiting | None = None


@partial(jax.jit, static_argnames=("decoder", "rounds"), donate_argnames=("state", "waiting"))
def decode_chunk(
    decoder: Decoder,
    params: Params,
    state: DecodeState,
    rounds: int,
    limit: Int[Array, ""] | int | None = None,
    patience: Int[Array, ""] | int | None = None,
    waiting: Waiting | None = None,
    left: Bool[Array, "B"] | None = None,
    going: Bool[Array, "B"] | None = None,
) -> tuple[DecodeState, ChunkRecord]:
    """Run rounds until `rounds` of them are done or every row is finished. One program, no host in between.

    A `limit` below `rounds` ends the chunk earlier. After `patience` rounds it also ends as soon as a row has finished
    of those that the host takes to be `going`, so that another request can have the row. Without `going` these are the
    rows that are unfinished. All of it is data: other values compile nothing.

    Rounds without drafts leave the drafter's part of the state alone. What it has not been given is in the record,
    behind what was `waiting` of earlier chunks; of the latter nothing is kept in rows that their texts have `left`. It
    must be given before anything is drafted from this state: see `give_unseen`.
    """
    sharing = Sharing.of(state)
    waits = lying(ROWS if sharing.split else None) if leaves_behind(decoder, state) else None
    return on_shards(
        partial(_chunk, decoder, rounds, sharing),
        params,
        state,
        limit,
        patience,
        waiting,
        left,
        going,
        out=lambda params, state, *_: (state, ChunkRecord(REPLICATED, REPLICATED, waits)),
    )


def _chunk(
    decoder: Decoder,
    rounds: int,
    sharing: Sharing,
    parts: int,
    params: Params,
    state: DecodeState,
    limit: Int[Array, ""] | int | None,
    patience: Int[Array, ""] | int | None,
    waiting: Waiting | None,
    left: Bool[Array, "B"] | None,
    going: Bool[Array, "B"] | None,
) -> tuple[DecodeState, ChunkRecord]:
    """`decode_chunk` on one of so many parts of the model."""
    decoder = decoder.shard(parts)
    most = rounds if limit is None else jnp.minimum(limit, rounds)
    before, behind = state, leaves_behind(decoder, state)
    taken_to_go = before.active if going is None else sharing.own(going, len(state.pending))
    if behind:
        state = _with_drafter(state, None)
        waiting = waiting or Waiting.none(decoder, len(state.pending), room_for(rounds))
        if left is not None:
            waiting = waiting.without(sharing.own(left, len(waiting.tokens)))
    elif decoder.drafter and decoder.drafts:
        sequences = state.sequences
        own = decoder.drafter.narrowed(params, sequences.drafter, sequences.length, decoder.rows)
        state = _with_drafter(state, own)

    @partial(jax.jit, inline=True)  # so that it is traced once, for shapes and loop
    def run_round(params: Params, state: DecodeState) -> tuple[DecodeState, RoundRecord, Features]:
        return decode_round(decoder, params, state)

    _, shapes, _ = jax.eval_shape(run_round, params, state)
    packing = Packing(shapes)

    def unfinished(carry: tuple) -> Array:
        index, state, *_ = carry
        go_on = (index < most) & anywhere(state.active)
        if patience is None:
            return go_on
        return go_on & ((index < patience) | ~anywhere(taken_to_go & ~state.active))

    def one_round(carry: tuple) -> tuple:
        index, state, waiting, packed = carry
        after, record, features = run_round(params, state)
        if waiting is not None:
            waiting = waiting.with_round(index, features)
        new = packing.packed(record)
        packed = jax.tree.map(lambda all_rounds, new: all_rounds.at[index].set(new), packed, new)
        return index + 1, after, waiting, packed

    n_rounds, state, waiting, packed = jax.lax.while_loop(
        unfinished, one_round, (jnp.int32(0), state, waiting, packing.room(rounds))
    )
    records = packing.unpacked(packed)
    if behind and waiting is not None:
        state = _with_drafter(state, before.sequences.drafter)
        fed = jnp.concatenate([before.pending[None], records.tokens[:-1, :, 0]])  # what the round before has emitted
        waiting = waiting.after(n_rounds, fed, records.n_emitted > 0)
    return state, ChunkRecord(n_rounds, jax.tree.map(partial(sharing.whole, axis=1), records), waiting)


def leaves_behind(decoder: Decoder, state: DecodeState) -> bool:
    """Whether there is a drafter that rounds do not ask, but that has a state."""
    return not decoder.drafts and state.sequences.drafter is not None


def _with_drafter(state: DecodeState, part: object) -> DecodeState:
    return replace(state, sequences=replace(state.sequences, drafter=part))
