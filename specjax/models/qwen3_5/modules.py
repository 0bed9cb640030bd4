"""Linen modules of the Qwen3.5 family: the trunk and the MTP block. Pure functions of parameters and state."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.attention import GatedAttention
from specjax.layers.gated_delta_net import GatedDeltaNet
from specjax.layers.linear import Embedding, Linear
from specjax.layers.mlp import SwiGLU
from specjax.layers.moe import MoE
from specjax.layers.norm import RMSNorm
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.state.kv import KVCache


def feed_forward(config: Qwen35Config, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The second half of a layer: norm, dense or expert MLP, residual. Its modules belong to the calling layer."""
    normed = RMSNorm(config.norm_eps, name="mlp_norm")(x)
    if (moe := config.moe) is None:
        return x + SwiGLU(config.mlp_width, name="mlp")(normed)
    experts = MoE(moe.num_experts, moe.experts_per_token, moe.expert_width, moe.shared_expert_width, name="moe")
    return x + experts(normed)


class AttentionLayer(nn.Module):
    """A full-attention layer; also the block of the MTP head."""

    config: Qwen35Config

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], valid: Bool[Array, "B T"], cache: KVCache
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Attend over the cache, into which the valid rows are written first."""
        c = self.config
        attention = GatedAttention(
            c.num_heads, c.num_kv_heads, c.head_width, c.rope_width, c.rope_theta, c.norm_eps, name="attention"
        )
        out, cache = attention(RMSNorm(c.norm_eps, name="attn_norm")(x), positions, valid, cache)
        return feed_forward(c, x + out), cache


class DeltaNetLayer(nn.Module):
    """A gated delta net layer."""

    config: Qwen35Config

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], n_valid: Int[Array, "B"], state: Any, *, rollback: bool
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Process the first `n_valid` rows; with `rollback` the new state is a window to commit."""
        c = self.config
        delta_net = GatedDeltaNet(
            c.linear_key_heads,
            c.linear_value_heads,
            c.linear_key_width,
            c.linear_value_width,
            c.conv_width,
            c.norm_eps,
            name="delta_net",
        )
        out, state = delta_net(RMSNorm(c.norm_eps, name="attn_norm")(x), n_valid, state, rollback=rollback)
        return feed_forward(c, x + out), state


class Trunk(nn.Module):
    """Embedding, layers, final norm and output head."""

    config: Qwen35Config

    def setup(self) -> None:
        c = self.config
        self.embed = Embedding(c.vocab_size, c.width)
        self.layers: list[Any] = [
            AttentionLayer(c) if kind == FULL_ATTENTION else DeltaNetLayer(c) for kind in c.layer_types
        ]
        self.norm = RMSNorm(c.norm_eps)
        if not c.tied_embeddings:
            self.lm_head = Linear(c.vocab_size, jnp.float32)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        length: Int[Array, "B"],
        n_valid: Int[Array, "B"],
        layers: tuple[Any, ...],
        *,
        rollback: bool,
        layer_inputs: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...], tuple[Any, ...]]:
        """Run the first `n_valid` tokens of each row at positions length, length + 1, ...

        Returns:
            The hidden states after the final norm, the inputs of the layers named in `layer_inputs`, and the layers'
            new states (windows, with `rollback`).
        """
        steps = jnp.arange(tokens.shape[1])
        positions = length[:, None] + steps
        valid = steps < n_valid[:, None]
        x = self.embed(tokens)
        new_layers, inputs = [], {}
        for index, (layer, state) in enumerate(zip(self.layers, layers, strict=True)):
            if index in layer_inputs:
                inputs[index] = x
            if self.config.layer_types[index] == FULL_ATTENTION:
                x, state = layer(x, positions, valid, state)
            else:
                x, state = layer(x, n_valid, state, rollback=rollback)
            new_layers.append(state)
        return self.norm(x), tuple(inputs[index] for index in layer_inputs), tuple(new_layers)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of final hidden states."""
        if self.config.tied_embeddings:
            return self.embed.unembed(hidden)
        return self.lm_head(hidden)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the embedding table, for a head that shares it."""
        return self.embed(tokens)

    def final_norm(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The final norm, for a head that shares it."""
        return self.norm(x)


class MTPBlock(nn.Module):
    """The multi-token-prediction block: one full-attention layer over eh_proj([enorm(embedding), hnorm(hidden)]).

    Row p holds the token at position p and the hidden state of position p - 1, and predicts the token at p + 1.

    Source: `graph_mtp` in llama.cpp's `src/models/qwen35.cpp`.
    """

    config: Qwen35Config

    def setup(self) -> None:
        c = self.config
        self.enorm = RMSNorm(c.norm_eps)
        self.hnorm = RMSNorm(c.norm_eps)
        self.eh_proj = Linear(c.width)
        self.block = AttentionLayer(c)
        if c.mtp_own_norm:
            self.norm = RMSNorm(c.norm_eps)
        if c.mtp_own_embedding:
            self.embed = Embedding(c.vocab_size, c.width)
        if c.mtp_own_output:
            self.lm_head = Linear(c.vocab_size, jnp.float32)

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Hidden rows before the head's norm, and the cache with the valid rows written."""
        pair = jnp.concatenate([self.enorm(embedded), self.hnorm(hidden).astype(embedded.dtype)], axis=-1)
        return self.block(self.eh_proj(pair), positions, valid, cache)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the block's own embedding table."""
        return self.embed(tokens)

    def final_norm(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The block's own final norm."""
        return self.norm(x)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits by the block's own output head."""
        return self.lm_head(hidden)
