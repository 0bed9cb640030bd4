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

from specjax.decoding.decoder import LONGEST_CHUNK, Decoder, DecodeState, is_eos
from specjax.decoding.sampling import sample_tokens
from specjax.models.protocol import Drafter, FeatureRequest, Params, Target
from specjax.state import SequenceState

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
    sequence: Int[Array, "B"],
    seed: Array,
    dropped: Int[Array, "B"] | Int[Array, ""] | int = 0,
) -> DecodeState:
    """Choose the first token of each row from the logits of its prompt's last token.

    `budget` counts it. A row ends early where the caches end: the last token that it emits is the first without a slot.
    `dropped` is that of `DecodeState`.
    """
    position = (state.length + dropped)[:, None]
    first = sample_tokens(
        last_logits[:, None], config=decoder.sampler, seed=seed, sequence=sequence, position=position
    )[:, 0]
    ended = is_eos(first, decoder.eos_ids)
    zero = jnp.zeros_like(first)
    # Caches drop what is written past their end, so that whatever came after would be wrong without a word.
    left = budget - 1 if state.limit is None else jnp.minimum(budget - 1, state.limit - state.length)
    return DecodeState(
        sequences=state,
        pending=first,
        budget=jnp.where(ended, 0, left),
        streak=zero,
        skip=zero > 0,
        sequence=sequence,
        seed=seed,
        dropped=zero + dropped,
    )


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
