"""The target's logits of given texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import new_sequences
from specjax.mesh.hosts import fetched
from specjax.mesh.shards import MODEL, lying, on_shards
from specjax.models.protocol import FeatureRequest, Params, Target
from specjax.runtime.feeding import feed
from specjax.runtime.prompts import check_prompts
from specjax.runtime.slots import slots_for
from specjax.state import KVTypes

if TYPE_CHECKING:
    from specjax.runtime.model import Model


def all_logits(model: Model, tokens: Sequence[int], kv_types: KVTypes) -> Float[np.ndarray, "T V"]:
    """The logits of every position, see `Model.logits`."""
    check_prompts(model.target, [tokens], new_tokens=0)
    padded = np.zeros((1, -(-len(tokens) // 64) * 64), np.int32)
    padded[0, : len(tokens)] = tokens
    logits = _all_logits(model.target, model.params, padded, np.array([len(tokens)], np.int32), kv_types)
    return fetched(logits)[0, : len(tokens), : model.target.vocab_size].astype(np.float32)


@partial(jax.jit, static_argnames=("target", "kv_types"))
def _all_logits(
    target: Target, params: Params, tokens: Int[Array, "B T"], n_valid: Int[Array, "B"], kv_types: KVTypes
) -> Float[Array, "B T V"]:

    def run(parts: int, params: Params, tokens: Array, n_valid: Array) -> Array:
        own, longest = target.shard(parts), tokens.shape[1]
        state = Decoder(own, None, max_drafts=0, kv_types=kv_types).init_state(tokens.shape[0], longest, chunk=longest)
        output, _ = own.extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="all")
        assert output.logits is not None
        return output.logits

    return on_shards(run, params, tokens, n_valid, out=lambda *_: lying(None, None, MODEL))


def next_logits(model: Model, tokens: Sequence[int], kv_types: KVTypes) -> Float[np.ndarray, "V"]:
    """The logits after the last token, see `Model.next_logits`."""
    check_prompts(model.target, [tokens])
    decoder = Decoder(model.target, None, max_drafts=0, kv_types=kv_types)
    state = new_sequences(decoder, model.params, 1, slots_for(len(tokens)))
    return fetched(feed(decoder, model.params, state, tokens)[1])[: model.target.vocab_size].astype(np.float32)
