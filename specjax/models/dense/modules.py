"""Linen modules of plain decoder-only transformers. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.linear import Embedding, Linear, apply_all
from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import apply_rope, rope_frequencies
from specjax.models.dense.config import DenseConfig
from specjax.state.kv import KVCache


class Attention(nn.Module):
    """Grouped-query attention with RoPE over whole heads.

    Source: `Qwen3Attention` and `LlamaAttention` in transformers.
    """

    config: DenseConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
        frequencies: Float[Array | np.ndarray, "N/2"],
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values at their positions, then attend."""
        c, (batch, rows, width) = self.config, x.shape

        counts = {"q_proj": c.num_heads, "k_proj": c.num_kv_heads, "v_proj": c.num_kv_heads}
        products = apply_all(x, *(Linear(count * c.head_width, name=name) for name, count in counts.items()))
        q, k, v = (product.reshape(batch, rows, -1, c.head_width) for product in products)
        if c.qk_norm:
            q, k = RMSNorm(c.norm_eps, name="q_norm")(q), RMSNorm(c.norm_eps, name="k_norm")(k)
        q, k = (apply_rope(rotated, positions, frequencies) for rotated in (q, k))
        cache = cache.append(k, v, positions, valid)
        out = cache.attend(q, positions, scale=c.head_width**-0.5)
        return Linear(width, name="o_proj")(out.reshape(batch, rows, -1)), cache


class Layer(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream."""

    config: DenseConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
        frequencies: Float[Array | np.ndarray, "N/2"],
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """The residual stream after the layer, and the cache with the valid rows written."""
        c = self.config
        normed = RMSNorm(c.norm_eps, name="attn_norm")(x)
        out, cache = Attention(c, name="attention")(normed, positions, valid, cache, frequencies)
        x = x + out
        return x + SwiGLU(c.mlp_width, name="mlp")(RMSNorm(c.norm_eps, name="mlp_norm")(x)), cache


class Trunk(nn.Module):
    """Embedding, layers, final norm and output head."""

    config: DenseConfig

    def setup(self) -> None:
        c = self.config
        self.embed = Embedding(c.vocab_size, c.width)
        self.layers = [Layer(c) for _ in range(c.num_layers)]
        self.norm = RMSNorm(c.norm_eps)
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.head_width // 2,), jnp.float32)
        if not c.tied_embeddings:
            self.lm_head = Linear(c.vocab_size, jnp.float32)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        length: Int[Array, "B"],
        n_valid: Int[Array, "B"],
        layers: tuple[KVCache, ...],
        *,
        rollback: bool,
        layer_inputs: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...], tuple[KVCache, ...]]:
        """See `TrunkTarget.trunk`; the hidden states are those after the final norm."""
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
        return self.norm(x), tuple(inputs[index] for index in layer_inputs), tuple(caches)

    def frequencies(self) -> Float[Array | np.ndarray, "N/2"]:
        """The rotary frequencies of all layers."""
        frequencies = rope_frequencies(self.config.rope_theta, self.config.head_width)
        return frequencies / self.rope_factors if self.config.rope_factors else frequencies

    def key_frequencies(self) -> tuple[Float[Array | np.ndarray, "N/2"], ...]:
        """See `TrunkTarget.cannot_shift`."""
        return (self.frequencies(),) * self.config.num_layers

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of final hidden states."""
        if self.config.tied_embeddings:
            return self.embed.unembed(hidden)
        return self.lm_head(hidden)
