"""Linen modules of EAGLE-3 drafters. Pure functions of parameters and caches.

Sources: Li et al., "EAGLE-3", arXiv 2503.01840; `Eagle3DraftModel` in speculators 0.9.0 `models/eagle3`,
`LlamaForCausalLMEagle3` in SpecForge 0.2.0, llama.cpp `src/models/eagle3.cpp`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Embedding, GatheredLinear, VocabularyLinear
from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.parts.attention import Attention
from specjax.models.parts.draft_vocabulary import first_tokens
from specjax.models.parts.plain_layer import PlainLayer
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import Call
from specjax.state.kv import KVCache


class FirstLayer(nn.Module):
    """A layer that attends from a token's embedding and a feature, and adds to the feature."""

    config: Eagle3Config

    @nn.compact
    def __call__(
        self, embedded: Float[Array, "B T D"], feature: Float[Array, "B T D"], call: Call, cache: KVCache
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """The residual stream after the layer, and the cache with the valid rows written."""
        c = self.config
        cache = cache.rotating(call.shared) if c.rope_factors else cache
        normed = RMSNorm(c.norm_eps, name="hidden_norm")(feature)
        pair = jnp.concatenate([RMSNorm(c.norm_eps, name="attn_norm")(embedded), normed], axis=-1)
        out, cache = Attention(c, name="attention")(pair, call, cache, call.shared)
        x = (normed if c.norm_before_residual else feature) + out
        return x + SwiGLU(c.mlp_width, name="mlp")(RMSNorm(c.norm_eps, name="mlp_norm")(x)), cache


class Eagle3(nn.Module):
    """Fusion of the target's features, layers, final norm and output head."""

    config: Eagle3Config

    def setup(self) -> None:
        c = self.config
        if c.norm_features == "all":
            self.input_norm = RMSNorm(c.norm_eps)
        if c.norm_features == "each":
            self.feature_norms = [RMSNorm(c.norm_eps) for _ in range(c.num_features)]
        self.fc = GatheredLinear(c.width)
        self.layers: list[Any] = [FirstLayer(c), *(PlainLayer(c) for _ in c.windows[1:])]
        self.norm = RMSNorm(c.norm_eps)
        if c.own_embedding:
            self.embed = Embedding(c.vocab_size, c.width)
        if c.own_output:
            self.lm_head = VocabularyLinear(c.draft_vocab_size)
        if c.maps_tokens:
            self.tokens = self.param("tokens", first_tokens, (c.draft_vocab_size,), jnp.int32)
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.head_width // 2,), jnp.float32)

    def fuse(self, features: Float[Array, "... features"]) -> Float[Array, "... D"]:
        """One feature of inputs of several layers, which stand one behind the other."""
        c = self.config
        if c.norm_features == "all":
            features = self.input_norm(features)
        if c.norm_features == "each":
            parts = jnp.split(features, c.num_features, axis=-1)
            features = jnp.concatenate([norm(x) for norm, x in zip(self.feature_norms, parts, strict=True)], axis=-1)
        return self.fc(features)

    def __call__(
        self, embedded: Float[Array, "B T D"], feature: Float[Array, "B T D"], call: Call, caches: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "B T D"], tuple[KVCache, ...]]:
        """What the next step takes as its feature, and the caches with the valid rows written."""
        c = self.config
        frequencies: Any = rope_frequencies(c.rope_theta, c.head_width)
        call = call._replace(shared=frequencies / self.rope_factors if c.rope_factors else frequencies)
        first, *others = self.layers
        x, cache = first(embedded, feature, call, caches[0])
        written = [cache]
        for layer, cache in zip(others, caches[1:], strict=True):
            x, cache = layer(x, call, cache)
            written.append(cache)
        return self.norm(x) if c.final_norm == "both" else x, tuple(written)

    def head_input(self, out: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """What the output head reads, of what `__call__` returned."""
        return self.norm(out) if self.config.final_norm == "head" else out

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the drafter's own embedding table."""
        return self.embed(tokens)

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... M"]:
        """Float32 logits of the drafter's tokens by its own output head."""
        return self.lm_head(normed)

    def whole(
        self, tokens: Int[Array, "B T"], features: Float[Array, "B T features"], caches: tuple[KVCache, ...]
    ) -> Any:
        """Everything that the drafter has, to initialise it."""
        feature = self.fuse(features)
        embedded = self.embed(tokens) if self.config.own_embedding else feature
        out, _ = self(embedded, feature, Call(tokens, tokens == 0), caches)
        normed = self.norm(out)
        return self.project(normed) if self.config.own_output else normed


def make_caches(config: Eagle3Config, room: Room) -> tuple[KVCache, ...]:
    """The empty caches of all layers: rings for those that see a window."""
    frequencies = rope_frequencies(config.rope_theta, config.head_width)
    return tuple(room.cache(config.num_kv_heads, config.head_width, frequencies, window) for window in config.windows)
