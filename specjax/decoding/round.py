"""One round of speculative decoding: draft, verify, accept, commit."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance import accept, propose_token
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.draft_control import effective_drafts, is_sure, update_streak, wanted_drafts
from specjax.decoding.leaning import counted, leaned, leaned_drafts
from specjax.decoding.probabilities import probabilities
from specjax.decoding.record import RoundRecord, token_scores
from specjax.mesh.columns import whole_width
from specjax.mesh.shards import parts
from specjax.models.protocol import Choice, Drafted, Features, Params, Proposal
from specjax.state import SequenceWindow, commit


def draft(decoder: Decoder, params: Params, state: DecodeState) -> tuple[Proposal | None, Int[Array, "B"]]:
    """Propose tokens; returns the proposal and how many of them each row verifies."""
    drafter = decoder.drafter
    if drafter is None or not decoder.drafts:
        return None, jnp.zeros_like(state.pending)

    settings = state.settings.idle_unless(state.active)
    wanted = wanted_drafts(settings, state.budget, state.skip)
    leaning = settings.leaning
    offsets = None if leaning is None or state.counts is None else leaning.offsets(state.counts)

    def choose(logits: Array, position: Array, tokens: Array | None = None, before: Drafted | None = None) -> Choice:
        grammar = None
        if tokens is not None:  # what fills up the last part has a name too, and the score -inf
            tokens = jnp.pad(tokens, ((0, 0), (0, logits.shape[1] * parts() - tokens.shape[1])))
        if offsets is not None:
            logits = leaned_drafts(logits, offsets, tokens)
        if (constraint := state.constraint) is not None:
            grammar = constraint.before_draft(before)
            logits = constraint.masked_drafts(logits, grammar, tokens)
        choice = propose_token(
            logits,
            tokens,
            vocab_size=whole_width(decoder.target.vocab_size),
            rule=decoder.rule,
            stated=decoder.probabilities,
            settings=settings,
            sequence=state.sequence,
            position=position + state.dropped,
            ahead=position - state.sequences.length - 1,
        )
        return choice._replace(grammar=grammar)

    def keep_going(confidence: Array, made: Array | int, drafter: int = 0) -> Array:
        return (made < wanted) & is_sure(confidence, settings) & settings.may_draft(drafter)

    proposal = drafter.propose(
        params,
        state.pending,
        state.sequences,
        num_drafts=decoder.max_drafts,
        choose=choose,
        keep_going=keep_going,
    )
    return proposal, effective_drafts(proposal.confidence, settings, wanted, proposal.made)


def verify(
    decoder: Decoder, params: Params, state: DecodeState, proposal: Proposal | None, n_drafted: Int[Array, "B"]
) -> tuple[Float[Array, "B R V"], Features, SequenceWindow]:
    """Run the target once over the pending token and the drafts.

    The window holds every part of the state, but for a drafter that has not drafted, which is given the features later.
    """
    tokens = state.pending[:, None]
    if proposal is not None:
        tokens = jnp.concatenate([tokens, proposal.tokens], axis=1)
    n_valid = jnp.where(state.active, n_drafted + 1, 0)
    output, window = decoder.target.verify(params, tokens, n_valid, state.sequences, request=decoder.request)
    if proposal is not None and decoder.drafter is not None:
        window = replace(window, drafter=decoder.drafter.observe(tokens, output.features, proposal.state))
    assert output.logits is not None
    return output.logits, output.features, window


def decode_round(decoder: Decoder, params: Params, state: DecodeState) -> tuple[DecodeState, RoundRecord, Features]:
    """Each unfinished row emits 1 to K + 1 tokens; a token that ends the sequence is the last one.

    The state must come from `begin` or from rounds of the same K; `decode_chunk` goes on from those of more drafts too.

    Returns:
        The next state, what the host learns, and the target's features of the fed tokens. In a round without drafts the
        state has no drafter's part.
    """
    proposal, n_drafted = draft(decoder, params, state)
    logits, features, window = verify(decoder, params, state, proposal, n_drafted)
    drafts = jnp.zeros((state.pending.shape[0], 0), jnp.int32) if proposal is None else proposal.tokens
    settings = state.settings.idle_unless(state.active)
    grammar = None if state.constraint is None else state.constraint.window(drafts)
    choices = leaned(logits, settings.leaning, state.counts, drafts)
    choices = choices if grammar is None else grammar.masked(choices)
    verdict = accept(
        choices,
        drafts,
        None if proposal is None else proposal.logq,
        n_drafted,
        rule=decoder.rule,
        settings=settings,
        sequence=state.sequence,
        position=state.position + 1,
    )

    rows = jnp.arange(decoder.rows)
    ends = state.settings.stop_at(verdict.tokens) & (rows <= verdict.n_accepted[:, None])
    ended = jnp.any(ends, axis=1)
    n_emitted = jnp.where(ended, jnp.argmax(ends, axis=1).astype(jnp.int32), verdict.n_accepted) + 1
    n_emitted = jnp.where(state.active, n_emitted, 0)
    n_accepted = jnp.minimum(verdict.n_accepted, n_emitted)
    last = jnp.take_along_axis(verdict.tokens, jnp.maximum(n_emitted - 1, 0)[:, None], axis=1)[:, 0]
    streak, skip = update_streak(state.streak, n_drafted, n_accepted, state.settings)

    record = RoundRecord(
        tokens=verdict.tokens,
        n_emitted=n_emitted,
        drafts=drafts,
        n_drafted=jnp.where(state.active, n_drafted, 0),
        n_accepted=n_accepted,
        source=jnp.zeros_like(n_accepted) if proposal is None or proposal.source is None else proposal.source,
        skipped=state.skip,
        hidden_norm=_hidden_norm(decoder, state),
        **token_scores(
            decoder,
            logits,
            choices,
            verdict.tokens,
            jnp.where(state.active, n_drafted + 1, 0),
            state.settings.scored & state.active,
        )._asdict(),
        probabilities=(
            probabilities(choices, proposal, n_drafted, verdict, settings) if decoder.probabilities else None
        ),
    )
    next_state = replace(
        state,
        sequences=commit(window, n_emitted),
        pending=jnp.where(state.active, last, state.pending),
        budget=jnp.where(ended, 0, state.budget - n_emitted),
        streak=streak,
        skip=skip,
        constraint=None if grammar is None else grammar.commit(n_emitted, last),
        counts=counted(state.counts, verdict.tokens, n_emitted),
    )
    return next_state, record, features


def _hidden_norm(decoder: Decoder, state: DecodeState) -> Float[Array, "B"]:
    """Of the hidden states that the drafts of the round start from; 0 where they start from none."""
    drafter = decoder.drafter
    norm = drafter.hidden_norm(state.sequences.drafter) if drafter and decoder.drafts else None
    return jnp.zeros(state.pending.shape, jnp.float32) if norm is None else norm
