"""What chooses the tokens of a block one after the other, at next to no cost: heads of DSpark and DFlash 2."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Embedding, Linear, VocabularyLinear
from specjax.models.drafters.dflash.config import MarkovHead, Selector


class Biased(nn.Module):
    """A linear layer with a bias.

    Attributes:
        features: outputs.
    """

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "B inputs"]) -> Float[Array, "B outputs"]:
        """Products and bias, in float32."""
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        return Linear(self.features, jnp.float32, name="proj")(x) + bias


class Vanilla(nn.Module):
    """A correction by the token before, of low rank.

    Attributes:
        config: its rank.
        vocab_size, draft_vocab_size: tokens that can come before, and tokens that are corrected.
    """

    config: MarkovHead
    vocab_size: int
    draft_vocab_size: int

    def setup(self) -> None:
        self.embed = Embedding(self.vocab_size, self.config.rank)
        self.out = VocabularyLinear(self.draft_vocab_size)

    def start(self, batch: int) -> Any:
        """What the head remembers before the first token of a block."""
        del batch
        return ()

    def factor(self, e: Float[Array, "B rank"], hidden: Float[Array, "B D"], memory: Any) -> tuple[Array, Any]:
        """What is multiplied into a correction, and the new memory; `e` is the embedding of the token before."""
        del hidden
        return e, memory

    def __call__(
        self, token: Int[Array, "B"], hidden: Float[Array, "B D"], memory: Any
    ) -> tuple[Float[Array, "B M"], Float[Array, "B rank"], Any]:
        """The correction of the logits of a slot, the embedding of the token before it, and the new memory."""
        e = self.embed(token)
        factor, memory = self.factor(e, hidden, memory)
        return self.out(factor), e, memory


class Gated(Vanilla):
    """The embedding is gated by the slot's hidden state and by itself."""

    def setup(self) -> None:
        super().setup()
        self.gate = Biased(self.config.rank)

    def factor(self, e: Float[Array, "B rank"], hidden: Float[Array, "B D"], memory: Any) -> tuple[Array, Any]:
        """The embedding, gated; nothing is remembered."""
        return jax.nn.sigmoid(self.gate(jnp.concatenate([hidden, e], axis=-1))) * e, memory


class Recurrent(Vanilla):
    """A gated recurrence over the tokens and hidden states of the block; the memory is [B, rank] float32."""

    def setup(self) -> None:
        super().setup()
        self.joint = Biased(3 * self.config.rank)

    def start(self, batch: int) -> Float[Array, "B rank"]:
        """Zeros, because nothing has come before."""
        return jnp.zeros((batch, self.config.rank), jnp.float32)

    def factor(self, e: Float[Array, "B rank"], hidden: Float[Array, "B D"], memory: Any) -> tuple[Array, Any]:
        """The output of the recurrence, and its next state."""
        keep, new, out = jnp.split(self.joint(jnp.concatenate([memory, e, hidden], axis=-1)), 3, axis=-1)
        keep = jax.nn.sigmoid(keep)
        return jnp.tanh(out), keep * memory + (1 - keep) * jnp.tanh(new)


_KINDS: dict[str, type[Vanilla]] = {"vanilla": Vanilla, "gated": Gated, "rnn": Recurrent}


def markov_head(config: MarkovHead, vocab_size: int, draft_vocab_size: int) -> Vanilla:
    """The Markov head of a config."""
    return _KINDS[config.kind](config, vocab_size, draft_vocab_size)


class ConfidenceHead(nn.Module):
    """How likely a draft is to be accepted, as a logit; it sees what is known before the draft is chosen."""

    @nn.compact
    def __call__(self, x: Float[Array, "B inputs"]) -> Float[Array, "B"]:
        """The logit of each row's draft."""
        return Biased(1, name="proj")(x)[:, 0]


class PairScores(nn.Module):
    """How well a token follows another one, in the light of the slot's hidden state.

    Attributes:
        config: the rank.
        vocab_size: V.
    """

    config: Selector
    vocab_size: int

    def setup(self) -> None:
        self.before = Embedding(self.vocab_size, self.config.rank)
        self.after = Embedding(self.vocab_size, self.config.rank)
        self.hidden = Linear(self.config.rank, jnp.float32)

    def __call__(
        self, token: Int[Array, "B"], hidden: Float[Array, "B D"], candidates: Int[Array, "B k"]
    ) -> Float[Array, "B k"]:
        """The scores of the candidates after the token."""
        factor = self.before(token) * self.hidden(hidden)
        return jnp.einsum("br,bkr->bk", factor, self.after(candidates), preferred_element_type=jnp.float32)
