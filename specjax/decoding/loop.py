"""The jitted loop over rounds."""

from __future__ import annotations

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
def decode_chunk(
    decoder: Decoder, params: Params, state: DecodeState, rounds: int, limit: Int[Array, ""] | int | None = None
) -> tuple[DecodeState, ChunkRecord]:
    """Run rounds until `rounds` of them are done or every row is finished. One program, no host in between.

    A `limit` below `rounds` ends the chunk earlier; it is data, so that another one compiles nothing.
    """
    most = rounds if limit is None else jnp.minimum(limit, rounds)
    run_round = jax.jit(partial(decode_round, decoder), inline=True)  # so that it is traced once, for shapes and loop
    _, shapes = jax.eval_shape(run_round, params, state)
    records = jax.tree.map(lambda x: jnp.zeros((rounds, *x.shape), x.dtype), shapes)

    def unfinished(carry: tuple[Array, DecodeState, RoundRecord]) -> Array:
        index, state, _ = carry
        return (index < most) & jnp.any(state.active)

    def one_round(carry: tuple[Array, DecodeState, RoundRecord]) -> tuple[Array, DecodeState, RoundRecord]:
        index, state, records = carry
        state, record = run_round(params, state)
        records = jax.tree.map(lambda all_rounds, new: all_rounds.at[index].set(new), records, record)
        return index + 1, state, records

    n_rounds, state, records = jax.lax.while_loop(unfinished, one_round, (jnp.int32(0), state, records))
    return state, ChunkRecord(n_rounds, records)
