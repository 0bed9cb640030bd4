"""Logits and log-probabilities of given texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.decoding.decoder import LONGEST_CHUNK, Decoder
from specjax.decoding.seats import on_device_of
from specjax.models.protocol import FeatureRequest, Params, Target
from specjax.runtime.engine import slots_for
from specjax.runtime.feeding import feed
from specjax.runtime.prompts import check_prompts
from specjax.state import KVTypes, SequenceState

if TYPE_CHECKING:
    from specjax.runtime.model import Model

MOST_LOGITS = 2**26
"""Logits that exist at once: 256 MB in float32."""

MOST_ROWS = 16
"""Texts that are scored together."""


def score(model: Model, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[list[float]]:
    """See `Model.score_batch`; all are token ids. Logits of a whole text never exist at once."""
    texts = [[*prompt, *continuation] for prompt, continuation in zip(prompts, continuations, strict=True)]
    check_prompts(model.target, prompts)
    check_prompts(model.target, texts, new_tokens=0)
    scores: list[list[float]] = []
    for begin in range(0, len(texts), MOST_ROWS):
        group = texts[begin : begin + MOST_ROWS]
        starts = [len(prompt) - 1 for prompt in prompts[begin : begin + MOST_ROWS]]
        logprobs = _score_rows(model, group)
        scores += [
            row[start : len(text) - 1].tolist() for row, start, text in zip(logprobs, starts, group, strict=True)
        ]
    return scores


def _score_rows(model: Model, texts: Sequence[Sequence[int]]) -> Float[np.ndarray, "B T"]:
    """Log-probabilities of the token after each position."""
    batch, longest = len(texts), max(map(len, texts))
    size = LONGEST_CHUNK
    while size > 16 and batch * size * model.target.vocab_size > MOST_LOGITS:
        size //= 2
    slots = slots_for(longest)
    tokens, lengths = np.zeros((batch, slots + 1), np.int32), np.array([len(text) for text in texts], np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    state = on_device_of(model.params, Decoder(model.target, None, max_drafts=0).init_state(batch, slots, chunk=size))
    pieces = []
    for begin in range(0, longest, size):
        n_valid = np.clip(lengths - begin, 0, size)
        piece, after = tokens[:, begin : begin + size], tokens[:, begin + 1 : begin + size + 1]
        state, logprobs = _score_piece(model.target, model.params, state, piece, after, n_valid)
        pieces.append(logprobs)
    return np.concatenate(jax.device_get(pieces), axis=1)


@partial(jax.jit, static_argnames="target", donate_argnames="state")
def _score_piece(
    target: Target,
    params: Params,
    state: SequenceState,
    tokens: Int[Array, "B T"],
    after: Int[Array, "B T"],
    n_valid: Int[Array, "B"],
) -> tuple[SequenceState, Float[Array, "B T"]]:
    output, state = target.extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="all")
    assert output.logits is not None
    logits = output.logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, after[..., None], axis=-1)[..., 0]
    return state, chosen - jax.nn.logsumexp(logits, axis=-1)


def all_logits(model: Model, tokens: Sequence[int]) -> Float[np.ndarray, "T V"]:
    """The logits of every position, see `Model.logits`."""
    check_prompts(model.target, [tokens], new_tokens=0)
    padded = np.zeros((1, -(-len(tokens) // 64) * 64), np.int32)
    padded[0, : len(tokens)] = tokens
    logits = _all_logits(model.target, model.params, padded, np.array([len(tokens)], np.int32))
    return np.asarray(logits[0, : len(tokens)], np.float32)


@partial(jax.jit, static_argnames="target")
def _all_logits(
    target: Target, params: Params, tokens: Int[Array, "B T"], n_valid: Int[Array, "B"]
) -> Float[Array, "B T V"]:
    state = Decoder(target, None, max_drafts=0).init_state(tokens.shape[0], tokens.shape[1], chunk=tokens.shape[1])
    output, _ = target.extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="all")
    assert output.logits is not None
    return output.logits


def next_logits(model: Model, tokens: Sequence[int], kv_types: KVTypes) -> Float[np.ndarray, "V"]:
    """The logits after the last token, see `Model.next_logits`."""
    check_prompts(model.target, [tokens])
    decoder = Decoder(model.target, None, max_drafts=0, kv_types=kv_types)
    state = on_device_of(model.params, decoder.init_state(1, slots_for(len(tokens))))
    return np.asarray(feed(decoder, model.params, state, tokens)[1], np.float32)
