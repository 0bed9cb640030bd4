"""Drafters that read layers inside the target: what the loop tells them of committed tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from ragged import assert_same_committed, plain, prompts
from scripted import run
from tiny_models import DENSE, make_params, relative_rms
from wants import GREEDY

from specjax.decoding.decoder import Decoder
from specjax.models.drafters.first_of import FirstOf
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import ChooseDraft, FeatureRequest, Features, KeepGoing, Params, Proposal
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.state import KVTypes, Part, SequenceState


@struct.dataclass
class Heard(Part):
    """What a drafter heard of the committed tokens: the sum of what the layers asked for were fed."""

    sums: jax.Array
    count: jax.Array


@struct.dataclass
class HeardWindow:
    state: Heard
    rows: jax.Array

    def commit(self, n: jax.Array) -> Heard:
        kept = jnp.arange(self.rows.shape[1]) < n[:, None]
        rows = jnp.where(kept[..., None], self.rows, 0)
        return Heard(self.state.sums + jnp.sum(rows, axis=1), self.state.count + n)


@dataclass(frozen=True)
class Listener(BaseDrafter):
    """Asks for inputs of layers, as encoders of several layers do; what it drafts is one token, over and over."""

    request: FeatureRequest = FeatureRequest(layer_inputs=(1, 0))

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Heard:
        return Heard(jnp.zeros((batch, 2 * DENSE.width)), jnp.zeros((batch,), jnp.int32))

    def extend(
        self,
        params: Params,
        tokens: jax.Array,
        features: Features,
        n_valid: jax.Array,
        state: Heard,
        length: jax.Array,
    ) -> Heard:
        return self.observe(tokens, features, state).commit(n_valid)

    def propose(
        self,
        params: Params,
        pending: jax.Array,
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        drafts = jnp.broadcast_to(pending[:, None] % 7, (len(pending), num_drafts))
        return Proposal(drafts, None, jnp.ones(drafts.shape), state.drafter)

    def observe(self, tokens: jax.Array, features: Features, state: Heard) -> HeardWindow:
        assert features.final_hidden is None
        return HeardWindow(state, jnp.concatenate(features.layer_inputs, axis=-1))


def test_drafters_hear_of_every_committed_token_once_and_of_no_other() -> None:
    """Through prefill in pieces and rounds of ragged acceptance, each with the features that it asked for."""
    target, params = Qwen35Target(DENSE), make_params(DENSE)
    listeners = Listener(), Listener(FeatureRequest(layer_inputs=(0, 2)))
    decoder = Decoder(target, FirstOf((listeners[0], Qwen35MTP(DENSE), listeners[1])), "greedy", 3, margins=True)
    got = run(decoder, params, prompts(DENSE), 24)
    want = plain(DENSE, GREEDY)
    assert got.tokens == want.tokens
    assert_same_committed(got.state.sequences, want.state.sequences)
    parts = got.state.sequences.drafter.parts

    texts = [prompt + tokens[:-1] for prompt, tokens in zip(prompts(DENSE), got.tokens, strict=True)]
    padded = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = text
    state = decoder.init_state(len(texts), padded.shape[1], chunk=padded.shape[1])
    lengths = np.array([len(text) for text in texts], np.int32)
    request = FeatureRequest(layer_inputs=(0, 1, 2))
    output, _ = jax.jit(partial(target.extend, request=request, rows="none"))(params, padded, lengths, state)
    for listener, heard in zip(listeners, parts[::2], strict=True):
        np.testing.assert_array_equal(heard.count, got.state.sequences.length)
        inputs = tuple(output.features.layer_inputs[layer] for layer in listener.request.layer_inputs)
        empty = listener.init_state(len(texts), 1, rows=1, chunk=1, kv_types=KVTypes())
        whole = listener.observe(padded, Features(None, inputs), empty).commit(lengths)
        assert relative_rms(heard.sums, whole.sums) < 1e-4
