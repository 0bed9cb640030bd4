"""Prompts in: the target and the drafter are fed chunk by chunk, in a few fixed sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Float, Int

from specjax.decoding.acceptance import choose_token
from specjax.decoding.decoder import LONGEST_CHUNK, Decoder, DecodeState
from specjax.decoding.record import RoundRecord, token_scores
from specjax.decoding.settings import RowSettings
from specjax.models.protocol import Drafter, FeatureRequest, Params, Target
from specjax.state import KVCache, SequenceState

CHUNK_SIZES = (16, 64, LONGEST_CHUNK)
"""Token counts that chunks are padded to: each is compiled once, and hidden states of a longer prompt never coexist."""


@partial(jax.jit, static_argnames=("target", "drafter"), donate_argnames="state")
def prefill_chunk(
    target: Target,
    drafter: Drafter | None,
    params: Params,
    state: SequenceState,
    tokens: Int[Array, "B T"],
    n_valid: Int[Array, "B"],
    last_logits: Float[Array, "B V"],
) -> tuple[SequenceState, Float[Array, "B V"]]:
    """Feed the first `n_valid` tokens of each row; returns the logits of each row's last token so far.

    Takes the models and not the decoder, so that what only later rounds depend on does not compile this again.
    """
    length = state.length
    request = drafter.request if drafter else FeatureRequest()
    output, state = target.extend(params, tokens, n_valid, state, request=request, rows="last")
    if drafter:
        fed = drafter.extend(params, tokens, output.features, n_valid, state.drafter, length)
        state = replace(state, drafter=fed)
    assert output.logits is not None
    return state, jnp.where((n_valid > 0)[:, None], output.logits[:, 0], last_logits)


@partial(jax.jit, static_argnames="decoder", donate_argnames="state")
def start_decoding(
    decoder: Decoder,
    state: SequenceState,
    last_logits: Float[Array, "B V"],
    budget: Int[Array, "B"],
    settings: RowSettings,
    sequence: Int[Array, "B"],
    dropped: Int[Array, "B"] | Int[Array, ""] | int = 0,
) -> tuple[DecodeState, RoundRecord]:
    """Choose the first token of each row from the logits of its prompt's last token.

    The record is that of a round with one token and no drafts.

    Args:
        decoder: the program that will go on.
        state: after the prompts; consumed.
        last_logits: of each prompt's last token.
        budget: tokens that each row may emit, this one included. A row ends early where the caches end: the last token
            that it emits is the first without a slot.
        settings: what each row wants.
        sequence, dropped: those of `DecodeState`.
    """
    logits = last_logits[:, None]
    position = state.length + dropped
    first = choose_token(last_logits, rule=decoder.rule, settings=settings, sequence=sequence, position=position)
    ended = settings.stop_at(first)
    zero = jnp.zeros_like(first)
    # Caches drop what is written past their end, so that whatever came after would be wrong without a word.
    slots = [layer.capacity for layer in state.layers if isinstance(layer, KVCache) and layer.window is None]
    left = jnp.minimum(budget - 1, min(slots) - state.length) if slots else budget - 1
    record = RoundRecord(
        tokens=first[:, None],
        n_emitted=zero + 1,
        drafts=jnp.zeros((len(first), 0), jnp.int32),
        n_drafted=zero,
        n_accepted=zero,
        skipped=zero > 0,
        hidden_norm=jnp.zeros(first.shape, jnp.float32),
        **token_scores(decoder, logits, first[:, None], zero + 1)._asdict(),
    )
    # The loop consumes its state: what comes in and goes out as it is would be consumed with it, and is copied.
    started = DecodeState(
        sequences=state,
        pending=first,
        budget=jnp.where(ended, 0, left),
        streak=zero,
        skip=zero > 0,
        sequence=jnp.copy(sequence),
        settings=jax.tree.map(jnp.copy, settings),
        dropped=zero + dropped,
    )
    return started, record


_Tree = TypeVar("_Tree")


def beside(params: Params, arrays: _Tree) -> _Tree:
    """New arrays for programs with these parameters: bound to their device, if the parameters are bound to one.

    What comes out of such a program is. It is compiled once for arrays that are, and once more for others.
    """
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.Array) and leaf.committed and isinstance(leaf.sharding, SingleDeviceSharding):
            return jax.device_put(arrays, leaf.device)
    return arrays


def chunks(prompts: Sequence[Sequence[int]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cut ragged prompts into (tokens [B, T], n_valid [B]) with T one of `CHUNK_SIZES`."""
    longest = max(len(prompt) for prompt in prompts)
    start = 0
    while start < longest:
        size = next((size for size in CHUNK_SIZES if size >= longest - start), CHUNK_SIZES[-1])
        tokens = np.zeros((len(prompts), size), np.int32)
        n_valid = np.zeros(len(prompts), np.int32)
        for row, prompt in enumerate(prompts):
            piece = np.asarray(prompt[start : start + size], np.int32)
            tokens[row, : len(piece)] = piece
            n_valid[row] = len(piece)
        yield tokens, n_valid
        start += size


def prefill(
    decoder: Decoder, params: Params, state: SequenceState, prompts: Sequence[Sequence[int]]
) -> tuple[SequenceState, Float[Array, "B V"]]:
    """Feed ragged prompts to a state; returns it and the logits of each prompt's last token.

    `state` is consumed. The caller has checked that no prompt is empty and that all fit the state's capacity.
    """
    logits = jnp.zeros((len(prompts), decoder.target.vocab_size), jnp.float32)
    state, logits = beside(params, (state, logits))
    for tokens, n_valid in chunks(prompts):
        state, logits = prefill_chunk(decoder.target, decoder.active_drafter, params, state, tokens, n_valid, logits)
    return state, logits
