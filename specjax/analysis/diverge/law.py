"""What a text gives if nothing is speculated: in one call with an empty state, or a token after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels import using
from pallas_kernels.table import TABLE
from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import new_sequences
from specjax.decoding.seats import feed_rows
from specjax.mesh.hosts import fetched
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import Features, Params
from specjax.runtime.feeding import feed
from specjax.runtime.whole_state import Layout
from specjax.state import Content, SequenceState

LOOPS = {"cache_attention": "xla_floats+xla_tiles", "causal_conv1d": "xla_shifted"} | {
    operation: "xla_recurrent" for operation in TABLE if operation.startswith("gated_delta.")
}
"""Operations whose references are loops in Python: programs that grow with the text, and take minutes to compile. Their
plainest forms in XLA stand in for them; those of the gated delta rule go from token to token too."""

PLAIN = ",".join(f"{operation}={LOOPS.get(operation, 'reference')}" for operation in TABLE)
"""The most obvious form of every operation that can be run on a whole text."""

STEP = 64
"""Texts are padded to a multiple of so many tokens, so that few programs are compiled."""


def padded(length: int) -> int:
    """The tokens that a call has for texts of at most this length."""
    return -(-length // STEP) * STEP


def at_once(
    decoder: Decoder, params: Params, tokens: Sequence[int], size: int
) -> tuple[Float[np.ndarray, "V"], SequenceState]:
    """The logits after a text, and the state: one call over all of it, from an empty state, by the plainest kernels.

    No ring goes round, nothing is taken back, and nothing that an earlier call has written is read.

    Args:
        decoder: says which state is made; its drafter, if there is one, is fed too.
        params: of the models.
        tokens: the text.
        size: tokens that the call is padded to; each size is a program of its own.
    """
    row, models = np.zeros((1, size), np.int32), (decoder.target, decoder.drafter)
    row[0, : len(tokens)] = tokens
    with using(PLAIN):
        empty = new_sequences(decoder, params, 1, size, chunk=size)
        state, logits = feed_rows(*models, params, empty, None, row, np.array([len(tokens)], np.int32))
    return _on_host(logits, decoder), state


def _on_host(logits: Float[Array, "1 Va"], decoder: Decoder) -> Float[np.ndarray, "V"]:
    return fetched(logits)[0, : decoder.target.vocab_size].astype(np.float32)


class Feeding:
    """A fresh state that is given final tokens: a prompt in pieces, and then one token after the other.

    Its rings are so large that they never go round.

    Attributes:
        decoder, params: the models, and what kind of state is made.
        layout: how states lie.
        state: after all tokens so far.
        logits: [V], after the last token.
    """

    def __init__(self, decoder: Decoder, params: Params, slots: int) -> None:
        """
        Args:
            decoder, params: see the attributes.
            slots: tokens that the state has room for.
        """
        self.decoder, self.params, self.layout = decoder, params, Layout.of(decoder, params, slots)
        self.state = new_sequences(decoder, params, 1, slots, chunk=slots)
        self.logits = np.zeros(0, np.float32)

    def feed_prompt(self, tokens: Sequence[int]) -> None:
        """Feed tokens in the pieces that engines feed."""
        self.state, logits = feed(self.decoder, self.params, self.state, tokens)
        self.logits = _on_host(logits[None], self.decoder)

    def feed_each(self, tokens: Sequence[int]) -> None:
        """Feed tokens one by one, as plain decoding does."""
        models, one = (self.decoder.target, self.decoder.drafter), np.ones(1, np.int32)
        for token in tokens:
            row = np.array([[token]], np.int32)
            self.state, logits = feed_rows(*models, self.params, self.state, None, row, one)
            self.logits = _on_host(logits, self.decoder)

    def fork(self) -> Feeding:
        """Another one that goes on from the same state, in arrays of its own."""
        other = object.__new__(Feeding)
        other.decoder, other.params, other.layout, other.logits = self.decoder, self.params, self.layout, self.logits
        other.state = jax.tree.map(jnp.copy, self.state)
        return other

    @property
    def contents(self) -> tuple[Content, ...]:
        """Of the state, see `SequenceState.contents`."""
        return self.contents_of(self.state)

    def contents_of(self, state: SequenceState) -> tuple[Content, ...]:
        """Those of another state of one sequence that lies like this one."""
        return self.layout.whole(state).contents(0)

    def features_of(self, token: int) -> Features:
        """What the target makes of a token that may come next."""
        return _features_of(self.decoder, self.params, self.state, np.array([[token]], np.int32))


@partial(jax.jit, static_argnames="decoder")
def _features_of(decoder: Decoder, params: Params, state: SequenceState, token: Int[Array, "B 1"]) -> Features:

    def run(parts: int, params: Params, state: SequenceState, token: Array) -> Features:
        target, one = decoder.target.shard(parts), jnp.ones_like(state.length)
        output, _ = target.extend(params, token, one, state, request=decoder.request, rows="none")
        return output.features

    return on_shards(run, params, state, token, out=lambda *_: REPLICATED)


@partial(jax.jit, static_argnames="decoder")
def caught_up(
    decoder: Decoder, params: Params, state: SequenceState, token: Int[Array, "B 1"], features: Features
) -> SequenceState:
    """The state, whose drafter has also been given the next token as a final one: whatever waited in it has been fed.

    The layers stay as they are; only the drafter's part and the length mean something.
    """

    def run(parts: int, params: Params, state: SequenceState, token: Array, features: Features) -> SequenceState:
        drafter = decoder.shard(parts).drafter
        assert drafter is not None
        own = drafter.extend(params, token, features, jnp.ones_like(state.length), state.drafter, state.length)
        return SequenceState((), own, state.length + 1)

    return on_shards(run, params, state, token, features, out=lambda params, state, *_: replace(state, layers=()))
