"""The jitted loop over rounds, and the host's side of it."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.record import RoundRecord
from specjax.decoding.round import decode_round
from specjax.models.protocol import Params


@struct.dataclass
class ChunkRecord:
    """The records of up to `rounds` rounds, stacked; only the first `n_rounds` were run."""

    n_rounds: Int[Array, ""]
    rounds: RoundRecord


@partial(jax.jit, static_argnames=("decoder", "rounds"), donate_argnames="state")
def decode_chunk(decoder: Decoder, params: Params, state: DecodeState, rounds: int) -> tuple[DecodeState, ChunkRecord]:
    """Run rounds until `rounds` of them are done or every row is finished. One program, no host in between."""
    shapes = jax.eval_shape(lambda s: decode_round(decoder, params, s)[1], state)
    records = jax.tree.map(lambda x: jnp.zeros((rounds, *x.shape), x.dtype), shapes)

    def unfinished(carry: tuple[Array, DecodeState, RoundRecord]) -> Array:
        index, state, _ = carry
        return (index < rounds) & jnp.any(state.active)

    def one_round(carry: tuple[Array, DecodeState, RoundRecord]) -> tuple[Array, DecodeState, RoundRecord]:
        index, state, records = carry
        state, record = decode_round(decoder, params, state)
        records = jax.tree.map(lambda all_rounds, new: all_rounds.at[index].set(new), records, record)
        return index + 1, state, records

    n_rounds, state, records = jax.lax.while_loop(unfinished, one_round, (jnp.int32(0), state, records))
    return state, ChunkRecord(n_rounds, records)


def decode(
    decoder: Decoder, params: Params, state: DecodeState, *, rounds_per_chunk: int
) -> Generator[ChunkRecord, None, DecodeState]:
    """Yield the records of chunk after chunk, each read while the next chunk is already running.

    `state` is consumed; the state after the last round is the generator's return value (`yield from`).
    """
    state, record = decode_chunk(decoder, params, state, rounds_per_chunk)
    while True:
        state, following = decode_chunk(decoder, params, state, rounds_per_chunk)
        record = jax.device_get(record)
        yield record
        if record.n_rounds < rounds_per_chunk:
            return state
        record = following
