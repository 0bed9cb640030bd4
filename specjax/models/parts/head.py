"""The block of a multi-token-prediction head, and what it takes from the target where it has nothing of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Embedding, GatheredLinear, VocabularyLinear
from specjax.layers.norm import RMSNorm
from specjax.models.parts.apply import apply
from specjax.models.parts.trunk import Call
from specjax.models.protocol import Params, Target


class Own(NamedTuple):
    """What a head brings of its own instead of sharing the target's: embedding table, output head, final norm."""

    embedding: bool
    output: bool
    norm: bool


class MTPBlock(nn.Module):
    """One layer over eh_proj([enorm(embedding), hnorm(hidden)]).

    Row p holds the token at position p and the hidden state of position p - 1, and predicts the token at p + 1.

    Attributes:
        config: says `vocab_size`, `width` and `norm_eps`.
        block: the layer, called as those of `Trunk` are.
        own: what the head does not share.

    Source: `graph_mtp` in llama.cpp's `src/models/qwen35.cpp` and `src/models/step35.cpp`.
    """

    config: Any
    block: nn.Module
    own: Own

    def setup(self) -> None:
        c = self.config
        self.enorm = RMSNorm(c.norm_eps)
        self.hnorm = RMSNorm(c.norm_eps)
        self.eh_proj = GatheredLinear(c.width)
        if self.own.norm:
            self.norm = RMSNorm(c.norm_eps)
        if self.own.embedding:
            self.embed = Embedding(c.vocab_size, c.width)
        if self.own.output:
            self.lm_head = VocabularyLinear(c.vocab_size)

    def __call__(
        self, embedded: Float[Array, "B T D"], hidden: Float[Array, "B T D"], call: Call, cache: Any
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Hidden rows before the head's norm, and the cache with the valid rows written."""
        pair = jnp.concatenate([self.enorm(embedded), self.hnorm(hidden).astype(embedded.dtype)], axis=-1)
        return self.block(self.eh_proj(pair), call, cache)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the head's own embedding table."""
        return self.embed(tokens)

    def final_norm(self, hidden: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The head's own final norm."""
        return self.norm(hidden)

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits by the head's own output head."""
        return self.lm_head(normed)

    def whole(
        self, tokens: Int[Array, "B T"], hidden: Float[Array, "B T D"], call: Call, cache: Any
    ) -> Float[Array, "B T _"]:
        """Everything that the head has, to initialise it."""
        hidden, _ = self(self.embed_tokens(tokens) if self.own.embedding else hidden, hidden, call, cache)
        hidden = self.norm(hidden) if self.own.norm else hidden
        return self.lm_head(hidden) if self.own.output else hidden


@dataclass(frozen=True)
class Head:
    """A head with its parameters, beside its target.

    Attributes:
        block, own: the head and its own parameters.
        target, params: the target, and all parameters.
    """

    block: MTPBlock
    own: Params
    target: Target
    params: Params

    def run(
        self, tokens: Int[Array, "B T"], hidden: Float[Array, "B T D"], call: Call, cache: Any
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Hidden rows before the norm, and the cache with the valid rows written."""
        if self.block.own.embedding:
            embedded = apply(self.block, self.own, tokens, method="embed_tokens")
        else:
            embedded = self.target.embed(self.params, tokens)
        return apply(self.block, self.own, embedded, hidden, call, cache)

    def norm(self, hidden: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The norm in front of the output head."""
        if self.block.own.norm:
            return apply(self.block, self.own, hidden, method="final_norm")
        return self.target.norm(self.params, hidden)

    def logits(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of normed hidden rows."""
        if self.block.own.output:
            return apply(self.block, self.own, normed, method="project")
        return self.target.unembed(self.params, normed)
