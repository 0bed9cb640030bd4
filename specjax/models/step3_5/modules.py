"""Linen modules of the Step-3.5 family: the trunk and its MTP heads. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.matmul import experts
from specjax.layers.linear import Embedding, Linear, apply_all, weight_of
from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import apply_rope, rope_frequencies
from specjax.models.step3_5.config import FULL_ATTENTION, SLIDING_ATTENTION, HeadConfig, LayerConfig, Step35Config
from specjax.state.kv import KVCache

Frequencies = dict[str, Array]
"""The rotary frequencies of each kind of attention, radians per position."""


class Attention(nn.Module):
    """Grouped-query attention with RMS-normed q and k, partial RoPE and one sigmoid gate per head.

    Source: `Step3p7Attention` in transformers; llama.cpp's `src/models/step35.cpp`.
    """

    config: Step35Config
    layer: LayerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
        frequencies: Float[Array, "pairs"],
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values at their positions, then attend."""
        c, kind = self.config, self.config.attention(self.layer)
        batch, rows, width = x.shape

        counts = {"q_proj": kind.num_heads, "k_proj": kind.num_kv_heads, "v_proj": kind.num_kv_heads}
        layers = [Linear(count * c.head_width, name=name) for name, count in counts.items()]
        *products, gate = apply_all(x, *layers, Linear(kind.num_heads, name="gate_proj"))
        q, k, v = (product.reshape(batch, rows, -1, c.head_width) for product in products)
        q, k = RMSNorm(c.norm_eps, name="q_norm")(q), RMSNorm(c.norm_eps, name="k_norm")(k)
        q, k = (apply_rope(rotated, positions, frequencies) for rotated in (q, k))
        cache = cache.append(k, v, positions, valid)
        out = cache.attend(q, positions, scale=c.head_width**-0.5)
        gated = out * jax.nn.sigmoid(gate)[..., None]
        return Linear(width, name="o_proj")(gated.reshape(batch, rows, -1)), cache


class MoE(nn.Module):
    """Routed experts, chosen and weighted by sigmoid scores, plus a shared expert.

    The selection bias decides which experts are chosen, but not how much they weigh.

    Source: `Step3p7SparseMoeBlock` in transformers; `build_moe_ffn` in llama.cpp's `src/llama-graph.cpp`.
    """

    config: Step35Config
    layer: LayerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        moe, width = self.config.moe, x.shape[-1]
        assert moe is not None
        in_shape = (moe.num_experts, moe.expert_width, width)
        gate = weight_of(self, "experts_gate", in_shape)
        up = weight_of(self, "experts_up", in_shape)
        down = weight_of(self, "experts_down", (moe.num_experts, width, moe.expert_width))

        flat = x.reshape(-1, width)
        scores = jax.nn.sigmoid(Linear(moe.num_experts, jnp.float32, name="router")(flat))
        chosen_by = scores
        if moe.selection_bias:
            chosen_by = scores + self.param("router_bias", nn.initializers.zeros, (moe.num_experts,), jnp.float32)
        _, expert = jax.lax.top_k(chosen_by, moe.experts_per_token)
        weight = jnp.take_along_axis(scores, expert, axis=-1)
        if moe.normalize:
            weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
        routed = experts(flat, expert, weight * moe.scale, gate, up, down, limit=self.layer.expert_limit)
        return routed.reshape(x.shape) + SwiGLU(moe.shared_expert_width, self.layer.mlp_limit, name="shared")(x)


class DecoderLayer(nn.Module):
    """Attention and a dense or sparse MLP; also the block of an MTP head."""

    config: Step35Config
    layer: LayerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
        frequencies: Frequencies,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Attend over the cache, into which the valid rows are written first."""
        c, layer = self.config, self.layer
        normed = RMSNorm(c.norm_eps, name="attn_norm")(x)
        attention = Attention(c, layer, name="attention")
        out, cache = attention(normed, positions, valid, cache, frequencies[layer.attention])
        x = x + out
        normed = RMSNorm(c.norm_eps, name="mlp_norm")(x)
        mlp = MoE(c, layer, name="moe") if layer.sparse else SwiGLU(c.mlp_width, layer.mlp_limit, name="mlp")
        return x + mlp(normed), cache


class Trunk(nn.Module):
    """Embedding, layers, final norm and output head. Hidden states that leave it are those before the final norm."""

    config: Step35Config

    def setup(self) -> None:
        c = self.config
        self.embed = Embedding(c.vocab_size, c.width)
        self.layers = [DecoderLayer(c, layer) for layer in c.layers]
        self.norm = RMSNorm(c.norm_eps)
        self.lm_head = Linear(c.vocab_size, jnp.float32)
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.full.rope_width // 2,), jnp.float32)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        length: Int[Array, "B"],
        n_valid: Int[Array, "B"],
        layers: tuple[KVCache, ...],
        *,
        rollback: bool = False,
        layer_inputs: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...], tuple[KVCache, ...]]:
        """Run the first `n_valid` tokens of each row at positions length, length + 1, ...

        Returns:
            The hidden states before the final norm, the inputs of the layers named in `layer_inputs`, and the layers'
            new caches.
        """
        del rollback  # caches need no preparation for it
        steps = jnp.arange(tokens.shape[1])
        positions = length[:, None] + steps
        valid = steps < n_valid[:, None]
        x, frequencies = self.embed(tokens), self.frequencies()
        caches, inputs = [], {}
        for index, (layer, cache) in enumerate(zip(self.layers, layers, strict=True)):
            if index in layer_inputs:
                inputs[index] = x
            x, cache = layer(x, positions, valid, cache, frequencies)
            caches.append(cache)
        return x, tuple(inputs[index] for index in layer_inputs), tuple(caches)

    def frequencies(self) -> Frequencies:
        """The rotary frequencies of both kinds of attention, for the trunk's layers and those of the heads."""
        c = self.config
        full = jnp.asarray(rope_frequencies(c.full.rope_theta, c.full.rope_width))
        return {
            FULL_ATTENTION: full / self.rope_factors if c.rope_factors else full,
            SLIDING_ATTENTION: jnp.asarray(rope_frequencies(c.sliding.rope_theta, c.sliding.rope_width)),
        }

    def key_frequencies(self) -> tuple[Float[Array, "_pairs"], ...]:
        """See `TrunkTarget.cannot_shift`."""
        frequencies = self.frequencies()
        return tuple(frequencies[layer.attention] for layer in self.config.layers)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of hidden states."""
        return self.lm_head(self.norm(hidden))

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the embedding table, for heads that share it."""
        return self.embed(tokens)

    def final_norm(self, hidden: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The final norm, for heads that share it."""
        return self.norm(hidden)

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """The output head on normed hidden states, for heads that share it."""
        return self.lm_head(normed)


class MTPHead(nn.Module):
    """A multi-token-prediction head: one decoder layer over eh_proj([enorm(embedding), hnorm(hidden)]).

    Source: `graph_mtp` in llama.cpp's `src/models/step35.cpp`.
    """

    config: Step35Config
    head: HeadConfig

    def setup(self) -> None:
        c = self.config
        self.enorm = RMSNorm(c.norm_eps)
        self.hnorm = RMSNorm(c.norm_eps)
        self.eh_proj = Linear(c.width)
        self.block = DecoderLayer(c, self.head.layer)
        if self.head.own_norm:
            self.norm = RMSNorm(c.norm_eps)
        if self.head.own_embedding:
            self.embed = Embedding(c.vocab_size, c.width)
        if self.head.own_output:
            self.lm_head = Linear(c.vocab_size, jnp.float32)

    def __call__(
        self,
        embedded: Float[Array, "B T D"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
        frequencies: Frequencies,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Hidden rows before the head's norm, and the cache with the valid rows written."""
        pair = jnp.concatenate([self.enorm(embedded), self.hnorm(hidden).astype(embedded.dtype)], axis=-1)
        return self.block(self.eh_proj(pair), positions, valid, cache, frequencies)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the head's own embedding table."""
        return self.embed(tokens)

    def final_norm(self, hidden: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The head's own final norm."""
        return self.norm(hidden)

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """The head's own output head on normed hidden states."""
        return self.lm_head(normed)
