"""Rows of a running state as seats: programs that feed prompts into some of them, and start and stop them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.acceptance import choose_token
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.grammar import GrammarRows
from specjax.decoding.leaning import counted, leaned
from specjax.decoding.loop import ChunkRecord
from specjax.decoding.record import RoundRecord, token_scores
from specjax.decoding.settings import RowSettings
from specjax.mesh.rows import Sharing
from specjax.mesh.shards import MODEL, REPLICATED, lying, on_shards
from specjax.models.protocol import Drafter, FeatureRequest, Params, Target
from specjax.state import SequenceState, Shift


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
        counts: how often their texts have each token already; None where the state does not count.
    """

    rows: Int[Array, "P"]
    settings: RowSettings
    sequence: Int[Array, "P"]
    budget: Int[Array, "P"]
    dropped: Int[Array, "P"]
    grammars: GrammarRows | None = None
    counts: Int[Array, "P Va"] | None = None


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
    sharing = Sharing.of(state)

    def run(parts: int, params: Params, state: SequenceState, rows: Any, tokens: Array, n_valid: Array) -> tuple:
        count = len(state.length)
        if rows is None:
            own, tokens, n_valid = state, sharing.own(tokens, count), sharing.own(n_valid, count)
        else:
            here = sharing.at(rows, count)
            own = jax.tree.map(lambda x: jnp.take(x, here, axis=0, mode="clip"), state)
        reader = drafter.shard(parts) if drafter else None
        request = reader.request if reader else FeatureRequest()
        output, fed = target.shard(parts).extend(params, tokens, n_valid, own, request=request, rows="last")
        if reader:
            fed = replace(fed, drafter=reader.extend(params, tokens, output.features, n_valid, own.drafter, own.length))
        assert output.logits is not None
        logits = output.logits[:, 0]
        if rows is None:
            return fed, sharing.whole(logits)
        return state.put(fed, here), sharing.found(logits, rows, count)

    return on_shards(
        run, params, state, rows, tokens, n_valid, out=lambda params, state, *_: (state, lying(None, MODEL))
    )


@partial(jax.jit, static_argnames="decoder", donate_argnames="state")
def start_rows(
    decoder: Decoder, state: DecodeState, logits: Float[Array, "P V"], new: Newcomers
) -> tuple[DecodeState, ChunkRecord]:
    """Let P rows whose prompts have been fed decode: choose their first tokens from the logits of their last ones.

    The record is that of one round with one token and no drafts, of the P rows.
    """
    run = partial(_start, decoder, Sharing.of(state))
    return on_shards(run, state, logits, new, out=lambda state, *_: (state, REPLICATED))


def _start(
    decoder: Decoder, sharing: Sharing, parts: int, state: DecodeState, logits: Float[Array, "P V"], new: Newcomers
) -> tuple[DecodeState, ChunkRecord]:
    """`start_rows` on one of so many parts of the model."""
    decoder = decoder.shard(parts)
    here = sharing.at(new.rows, len(state.pending))
    length = jnp.take(sharing.whole(state.sequences.length), new.rows, mode="clip")
    places, grammar = logits[:, None], None
    nothing = jnp.zeros((len(logits), 0), jnp.int32)
    choices = leaned(places, new.settings.leaning, new.counts, nothing)
    if state.constraint is not None:
        assert new.grammars is not None, "rows that join rows with grammars say that they have none"
        grammar = replace(state.constraint, rows=new.grammars).window(nothing)
        choices = grammar.masked(choices)
    first = choose_token(
        choices[:, 0],
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
        **token_scores(decoder, places, choices, first, zero + 1, new.settings.scored)._asdict(),
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
        "counts": counted(new.counts, first, zero + 1),
    }

    def put(old: Array, own: Array) -> Array:
        return old.at[here].set(own, mode="drop")

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
    sharing = Sharing.of(state)

    def run(parts: int, state: DecodeState, budget: Array, given: Array) -> DecodeState:
        del parts
        budget, given = (sharing.own(x, len(state.budget)) for x in (budget, given))
        return replace(state, budget=jnp.where(given, budget, state.budget))

    return on_shards(run, state, budget, given, out=lambda state, *_: state)


@partial(jax.jit, donate_argnames="state")
def drop_tokens(state: DecodeState, keep: Int[Array, "B"], drop: Int[Array, "B"]) -> DecodeState:
    """Drop tokens from rows of a running state, see `shift_context`."""
    sharing = Sharing.of(state)

    def run(parts: int, state: DecodeState, keep: Array, drop: Array) -> DecodeState:
        del parts
        keep, drop = (sharing.own(x, len(state.budget)) for x in (keep, drop))
        sequences = state.sequences.shift(Shift(keep, drop, state.sequences.length))
        return replace(state, sequences=sequences, dropped=state.dropped + drop)

    return on_shards(run, state, keep, drop, out=lambda state, *_: state)
