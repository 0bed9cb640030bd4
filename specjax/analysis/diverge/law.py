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
from specjax.models.protocol import Features, Params
from specjax.runtime.feeding import feed
from specjax.state import SequenceState

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
    row = np.zeros((1, size), np.int32)
    row[0, : len(tokens)] = tokens
    with using(PLAIN):
        logits, state = _at_once(decoder, params, row, np.array([len(tokens)], np.int32))
    return np.asarray(logits[0], np.float32), state


@partial(jax.jit, static_argnames="decoder")
def _at_once(
    decoder: Decoder, params: Params, tokens: Int[Array, "B T"], n_valid: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], SequenceState]:
    empty = decoder.init_state(tokens.shape[0], tokens.shape[1], chunk=tokens.shape[1])
    output, state = decoder.target.extend(params, tokens, n_valid, empty, request=decoder.request, rows="last")
    if decoder.drafter is not None:
        own = decoder.drafter.extend(params, tokens, output.features, n_valid, empty.drafter, empty.length)
        state = replace(state, drafter=own)
    assert output.logits is not None
    return output.logits[:, 0], state


class Feeding:
    """A fresh state that is given final tokens: a prompt in pieces, and then one token after the other.

    Its rings are so large that they never go round.

    Attributes:
        decoder, params: the models, and what kind of state is made.
        state: after all tokens so far.
        logits: [V], after the last token.
    """

    def __init__(self, decoder: Decoder, params: Params, slots: int) -> None:
        """
        Args:
            decoder, params: see the attributes.
            slots: tokens that the state has room for.
        """
        self.decoder, self.params = decoder, params
        self.state = new_sequences(decoder, params, 1, slots, chunk=slots)
        self.logits = np.zeros(0, np.float32)

    def feed_prompt(self, tokens: Sequence[int]) -> None:
        """Feed tokens in the pieces that engines feed."""
        self.state, logits = feed(self.decoder, self.params, self.state, tokens)
        self.logits = np.asarray(logits, np.float32)

    def feed_each(self, tokens: Sequence[int]) -> None:
        """Feed tokens one by one, as plain decoding does."""
        models, one = (self.decoder.target, self.decoder.drafter), np.ones(1, np.int32)
        for token in tokens:
            row = np.array([[token]], np.int32)
            self.state, logits = feed_rows(*models, self.params, self.state, None, row, one)
            self.logits = np.asarray(logits[0], np.float32)

    def fork(self) -> Feeding:
        """Another one that goes on from the same state, in arrays of its own."""
        other = object.__new__(Feeding)
        other.decoder, other.params, other.logits = self.decoder, self.params, self.logits
        other.state = jax.tree.map(jnp.copy, self.state)
        return other

    def features_of(self, token: int) -> Features:
        """What the target makes of a token that may come next."""
        return _features_of(self.decoder, self.params, self.state, np.array([[token]], np.int32))


@partial(jax.jit, static_argnames="decoder")
def _features_of(decoder: Decoder, params: Params, state: SequenceState, token: Int[Array, "B 1"]) -> Features:
    one = jnp.ones_like(state.length)
    output, _ = decoder.target.extend(params, token, one, state, request=decoder.request, rows="none")
    return output.features


@partial(jax.jit, static_argnames="decoder")
def caught_up(
    decoder: Decoder, params: Params, state: SequenceState, token: Int[Array, "B 1"], features: Features
) -> SequenceState:
    """The state, whose drafter has also been given the next token as a final one: whatever waited in it has been fed.

    The layers stay as they are; only the drafter's part and the length mean something.
    """
    assert decoder.drafter is not None
    one = jnp.ones_like(state.length)
    own = decoder.drafter.extend(params, token, features, one, state.drafter, state.length)
    return SequenceState((), own, state.length + 1)
