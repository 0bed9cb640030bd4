"""Rows of a running state as seats: programs that feed prompts into some of them, and start and stop them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.acceptance import choose_token
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.grammar import GrammarRows
from specjax.decoding.loop import ChunkRecord
from specjax.decoding.record import RoundRecord, token_scores
from specjax.decoding.settings import NO_STOP, RowSettings
from specjax.models.protocol import Drafter, FeatureRequest, Params, Target
from specjax.state import SequenceState


@struct.dataclass
class Newcomers:
    """What P rows need to start decoding.

    Attributes:
        rows: where they sit; B or more for entries that stand for no row.
        settings: how they draw and draft.
        sequence: their random streams.
        budget: tokens that each may still emit after the first.
        dropped: see `DecodeState`.
        grammars: theirs, and where their texts begin in them; None where the state has no constraint.
    """

    rows: Int[Array, "P"]
    settings: RowSettings
    sequence: Int[Array, "P"]
    budget: Int[Array, "P"]
    dropped: Int[Array, "P"]
    grammars: GrammarRows | None = None


@partial(jax.jit, static_argnames=("target", "drafter"), donate_argnames="state")
def feed_rows(
    target: Target,
    drafter: Drafter | None,
    params: Params,
    state: SequenceState,
    rows: Int[Array, "P"] | None,
    tokens: Int[Array, "P T"],
    n_valid: Int[Array, "P"],
) -> tuple[SequenceState, Float[Array, "P V"]]:
    """Feed the first `n_valid` tokens to each of P rows. Rows of B or more are not there, and None means all in order.

    Takes the models and not the decoder, so that what only rounds depend on does not compile this again.

    Returns:
        The state, and the logits of each row's last token; those of rows without tokens mean nothing.
    """
    own = state if rows is None else jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), state)
    request = drafter.request if drafter else FeatureRequest()
    output, fed = target.extend(params, tokens, n_valid, own, request=request, rows="last")
    if drafter:
        fed = replace(fed, drafter=drafter.extend(params, tokens, output.features, n_valid, own.drafter, own.length))
    assert output.logits is not None
    return fed if rows is None else state.put(fed, rows), output.logits[:, 0]


@partial(jax.jit, static_argnames="decoder", donate_argnames="state")
def start_rows(
    decoder: Decoder, state: DecodeState, logits: Float[Array, "P V"], new: Newcomers
) -> tuple[DecodeState, ChunkRecord]:
    """Let P rows whose prompts have been fed decode: choose their first tokens from the logits of their last ones.

    The record is that of one round with one token and no drafts, of the P rows.
    """
    length = jnp.take(state.sequences.length, new.rows, mode="clip")
    places, grammar = logits[:, None], None
    choices = places
    if state.constraint is not None:
        assert new.grammars is not None, "rows that join rows with grammars say that they have none"
        grammar = replace(state.constraint, rows=new.grammars).window(jnp.zeros((len(logits), 0), jnp.int32))
        choices = grammar.masked(places)
    first = choose_token(
        logits if grammar is None else choices[:, 0],
        rule=decoder.rule,
        settings=new.settings,
        sequence=new.sequence,
        position=length + new.dropped,
    )[:, None]
    zero = jnp.zeros_like(new.budget)
    record = RoundRecord(
        tokens=first,
        n_emitted=zero + 1,
        drafts=jnp.zeros((len(first), 0), jnp.int32),
        n_drafted=zero,
        n_accepted=zero,
        source=zero,
        skipped=zero > 0,
        hidden_norm=jnp.zeros(zero.shape, jnp.float32),
        **token_scores(decoder, places, choices, first, zero + 1)._asdict(),
    )
    # Caches drop what is written past their end, so that whatever came after would be wrong without a word.
    limit = state.sequences.limit
    budget = new.budget if limit is None else jnp.minimum(new.budget, limit - length)
    ended = new.settings.stop_at(first[:, 0])
    started = {
        "pending": first[:, 0],
        "budget": jnp.where(ended, 0, budget),
        "streak": zero,
        "skip": zero > 0,
        "sequence": new.sequence,
        "settings": new.settings,
        "dropped": new.dropped,
    }

    def put(old: Array, own: Array) -> Array:
        return old.at[new.rows].set(own, mode="drop")

    loop = {name: jax.tree.map(put, getattr(state, name), own) for name, own in started.items()}
    constraint = state.constraint
    if constraint is not None and grammar is not None:
        own = grammar.commit(zero + 1, first[:, 0]).rows
        constraint = replace(constraint, rows=jax.tree.map(put, constraint.rows, own))
    rounds = jax.tree.map(lambda x: x[None], record)
    return replace(state, **loop, constraint=constraint), ChunkRecord(jnp.int32(1), rounds)


@partial(jax.jit, donate_argnames="state")
def set_budgets(state: DecodeState, budget: Int[Array, "B"], given: Bool[Array, "B"]) -> DecodeState:
    """Let the rows that are `given` one emit so many tokens more; 0 stops a row, and the others stay as they are."""
    return replace(state, budget=jnp.where(given, budget, state.budget))


def idle_state(decoder: Decoder, settings: RowSettings, slots: int) -> DecodeState:
    """Rows with nothing to do. No two arrays share memory, so that the state can be consumed."""
    batch = len(settings.seed)
    pending, budget, streak, skip, sequence, dropped = (jnp.zeros((batch,), jnp.int32) for _ in range(6))
    sequences = decoder.init_state(batch, slots)
    return DecodeState(sequences, pending, budget, streak, skip > 0, sequence, settings, dropped)


def widened(state: DecodeState, stop_width: int) -> DecodeState:
    """The state with room for so many stop tokens a row, at least as many as there is."""
    stops = state.settings.stop_tokens
    more = jnp.pad(stops, ((0, 0), (0, stop_width - stops.shape[1])), constant_values=NO_STOP)
    return replace(state, settings=replace(state.settings, stop_tokens=more))


_Tree = TypeVar("_Tree")


def on_device_of(params: Params, arrays: _Tree) -> _Tree:
    """Put new arrays on the device that the parameters are committed to, if they are committed to one. Outputs of a
    program with such parameters are committed too. JAX would compile a second program for arrays that are not.
    """
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.Array) and leaf.committed and isinstance(leaf.sharding, SingleDeviceSharding):
            return jax.device_put(arrays, leaf.device)
    return arrays
