"""The state of a batch whose prompts have been fed, as one function of arrays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.decoding.decoder import LONGEST_CHUNK, Decoder, DecodeState
from specjax.decoding.grammar import Constraint
from specjax.decoding.loop import ChunkRecord
from specjax.decoding.new_state import constraint_specs, idle_state, specs_of_sequences
from specjax.decoding.seats import Newcomers, feed_rows, start_rows
from specjax.decoding.settings import RowSettings
from specjax.mesh.columns import share
from specjax.mesh.shards import MODEL, REPLICATED, mesh_of, on_shards
from specjax.models.protocol import Params


@partial(jax.jit, static_argnames=("decoder", "slots"))
def begin(
    decoder: Decoder,
    params: Params,
    tokens: Int[Array, "B T"],
    n_valid: Int[Array, "B"],
    settings: RowSettings,
    budget: Int[Array, "B"],
    constraint: Constraint | None = None,
    *,
    slots: int,
) -> tuple[DecodeState, ChunkRecord]:
    """Feed a prompt to each row and choose its first token.

    What comes out is what `decode_round` and `decode_chunk` take. All of it is data: the function can stand inside
    `jax.jit`, `jax.vmap` and `jax.lax.scan`.

    Args:
        decoder: what decodes.
        params: the weights, `Model.params`.
        tokens: the prompts, with anything behind their ends.
        n_valid: the tokens of each, at least one.
        settings: what each row wants, see `Decoder.settings`.
        budget: tokens that each row may emit, the first one included.
        constraint: the grammars of rows, see `Decoder.constraint`; None if no row has one.
        slots: room for the tokens of a row, prompt and continuation together. Beyond it a row stops.

    Returns:
        The state, and the record of one round without drafts, which has emitted the first tokens.
    """
    return on_shards(
        partial(_begin, decoder, slots),
        params,
        tokens,
        n_valid,
        settings,
        budget,
        constraint,
        out=lambda *_: (_specs(decoder, params, settings, constraint, slots), REPLICATED),
    )


def _specs(
    decoder: Decoder, params: Params, settings: RowSettings, constraint: Constraint | None, slots: int
) -> DecodeState:
    """How the state lies on the mesh of the parameters: every device has all sequences."""
    mesh = mesh_of(params)
    assert mesh is not None
    state = jax.eval_shape(lambda: idle_state(decoder, settings, slots))
    sequences = specs_of_sequences(decoder, mesh.shape[MODEL], len(settings.seed), slots)
    grammars = None if constraint is None else constraint_specs(constraint)
    return replace(jax.tree.map(lambda _: REPLICATED, state), sequences=sequences, constraint=grammars)


def _begin(
    decoder: Decoder,
    slots: int,
    parts: int,
    params: Params,
    tokens: Int[Array, "B T"],
    n_valid: Int[Array, "B"],
    settings: RowSettings,
    budget: Int[Array, "B"],
    constraint: Constraint | None,
) -> tuple[DecodeState, ChunkRecord]:
    """`begin` on one of so many parts of the model."""
    decoder = decoder.shard(parts)
    batch, longest = tokens.shape
    if constraint is not None:
        # What runs next consumes the state, and the caller may begin with the same grammars again: hence the copy.
        constraint = jax.tree.map(jnp.copy, replace(constraint, tables=constraint.tables.of_part()))
    state = replace(idle_state(decoder, settings, slots), constraint=constraint)
    sequences, logits = state.sequences, jnp.zeros((batch, share(decoder.target.vocab_size)))
    for start in range(0, longest, LONGEST_CHUNK):
        piece = tokens[:, start : start + LONGEST_CHUNK]
        valid = jnp.clip(n_valid - start, 0, piece.shape[1])
        sequences, last = feed_rows(decoder.target, decoder.drafter, params, sequences, None, piece, valid)
        logits = jnp.where((valid > 0)[:, None], last, logits)
    rows = jnp.arange(batch, dtype=jnp.int32)
    grammars = None if constraint is None else constraint.rows
    new = Newcomers(rows, settings, rows, budget - 1, jnp.zeros_like(rows), grammars, state.counts)
    return start_rows(decoder, replace(state, sequences=sequences), logits, new)
