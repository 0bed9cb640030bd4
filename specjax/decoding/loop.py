"""The jitted loop over rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.record import RoundRecord
from specjax.decoding.round import decode_round
from specjax.mesh.rows import Sharing, anywhere
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import Features, Params

UNSEEN_BLOCKS = (8, 32, 128)
"""Rounds without drafts whose tokens a drafter is given at once: the smallest block in which they have room. The
longest is no longer than the chunks that states are made for, see `Decoder.init_state`."""


@struct.dataclass
class ChunkRecord:
    """The records of up to `rounds` rounds, stacked; only the first `n_rounds` were run."""

    n_rounds: Int[Array, ""]
    rounds: RoundRecord


@partial(jax.jit, static_argnames=("decoder", "rounds"), donate_argnames="state")
def decode_chunk(
    decoder: Decoder,
    params: Params,
    state: DecodeState,
    rounds: int,
    limit: Int[Array, ""] | int | None = None,
    patience: Int[Array, ""] | int | None = None,
) -> tuple[DecodeState, ChunkRecord]:
    """Run rounds until `rounds` of them are done or every row is finished. One program, no host in between.

    A `limit` below `rounds` ends the chunk earlier. After `patience` rounds it also ends as soon as a row has finished
    in it, so that a request that comes meanwhile can have the row. Both are data: other numbers compile nothing.

    Rounds without drafts leave the drafter's part of the state alone: the tokens of the chunk enter it together at the
    end.
    """
    return on_shards(
        partial(_chunk, decoder, rounds, Sharing.of(state)),
        params,
        state,
        limit,
        patience,
        out=lambda params, state, *_: (state, REPLICATED),
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
) -> tuple[DecodeState, ChunkRecord]:
    """`decode_chunk` on one of so many parts of the model."""
    decoder = decoder.shard(parts)
    most = rounds if limit is None else jnp.minimum(limit, rounds)
    idle_drafter = None if decoder.drafts else decoder.drafter
    before = state
    if idle_drafter:
        state = _with_drafter(state, None)
    elif decoder.drafter:
        sequences = state.sequences
        own = decoder.drafter.narrowed(params, sequences.drafter, sequences.length, decoder.rows)
        state = _with_drafter(state, own)

    @partial(jax.jit, inline=True)  # so that it is traced once, for shapes and loop
    def run_round(params: Params, state: DecodeState) -> tuple[DecodeState, tuple[RoundRecord, Features | None]]:
        after, record, features = decode_round(decoder, params, state)
        return after, (record, features if idle_drafter else None)

    _, shapes = jax.eval_shape(run_round, params, state)
    outputs = jax.tree.map(lambda x: jnp.zeros((rounds, *x.shape), x.dtype), shapes)

    def unfinished(carry: tuple) -> Array:
        index, state, _ = carry
        go_on = (index < most) & anywhere(state.active)
        if patience is None:
            return go_on
        return go_on & ((index < patience) | ~anywhere(before.active & ~state.active))

    def one_round(carry: tuple) -> tuple:
        index, state, outputs = carry
        state, output = run_round(params, state)
        outputs = jax.tree.map(lambda all_rounds, new: all_rounds.at[index].set(new), outputs, output)
        return index + 1, state, outputs

    n_rounds, state, (records, features) = jax.lax.while_loop(unfinished, one_round, (jnp.int32(0), state, outputs))
    if idle_drafter:
        state = _with_drafter(state, _shown(decoder, params, before, records, features, n_rounds))
    return state, ChunkRecord(n_rounds, jax.tree.map(partial(sharing.whole, axis=1), records))


def _with_drafter(state: DecodeState, part: object) -> DecodeState:
    return replace(state, sequences=replace(state.sequences, drafter=part))


def _shown(
    decoder: Decoder,
    params: Params,
    before: DecodeState,
    records: RoundRecord,
    features: Features | None,
    n_rounds: Int[Array, ""],
) -> object:
    """The drafter's part of the state that it had `before`, after it has been given what it has not seen.

    Only as many blocks of rounds as were run are looked at, so that a short chunk costs little.

    Args:
        decoder, params: of the chunk, whose rounds have not drafted.
        before: the state at its beginning.
        records, features: of its rounds, stacked.
        n_rounds: how many of them were run.
    """
    drafter, own = decoder.drafter, before.sequences.drafter
    assert drafter is not None
    if own is None:
        return None
    rounds = records.n_emitted.shape[0]
    sizes = [*(size for size in UNSEEN_BLOCKS[:-1] if size < rounds), min(rounds, UNSEEN_BLOCKS[-1])]
    chosen = records.tokens[:, :, 0]
    fed = jnp.concatenate([before.pending[None], chosen[:-1]])  # a round is fed what the one before it has chosen
    unseen = jax.tree.map(
        lambda x: jnp.pad(x, ((0, -rounds % sizes[-1]), *((0, 0),) * (x.ndim - 1))), (fed, records.n_emitted, features)
    )

    def give(size: int, start: Array, length: Array, own: object) -> tuple:
        block = jax.tree.map(lambda x: jnp.swapaxes(jax.lax.dynamic_slice_in_dim(x, start, size), 0, 1), unseen)
        tokens, n_emitted, features = block
        features = jax.tree.map(lambda x: x[:, :, 0], features)
        n_valid = jnp.sum(n_emitted, axis=1)  # 1 of each round, until the row has finished
        return length + n_valid, drafter.extend(params, tokens, features, n_valid, own, length)

    def give_next(carry: tuple) -> tuple:
        start, length, own = carry
        smallest = jnp.searchsorted(jnp.asarray(sizes[:-1]), n_rounds - start)
        length, own = jax.lax.switch(smallest, [partial(give, size) for size in sizes], start, length, own)
        return start + jnp.asarray(sizes)[smallest], length, own

    carry = (jnp.int32(0), before.sequences.length, own)
    return jax.lax.while_loop(lambda carry: carry[0] < n_rounds, give_next, carry)[2]
