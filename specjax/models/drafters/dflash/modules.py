"""Linen modules of the block drafters. Pure functions of parameters and caches.

Sources: DFlash, DFlash 2 and DSpark (arXiv 2607.05147) in speculators 0.9.0 `models/{dflash,dflash2,dspark}`, SpecForge
0.2.0 `modeling/draft/{dflash,dspark}.py`, and llama.cpp `src/models/dflash.cpp`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.linear import Embedding, GatheredLinear, VocabularyLinear
from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.models.drafters.dflash.attention import BlockAttention
from specjax.models.drafters.dflash.config import Convolution, DFlashConfig
from specjax.models.drafters.dflash.heads import ConfidenceHead, PairScores, markov_head
from specjax.models.drafters.dflash.sight import Sight, sight
from specjax.models.parts.draft_vocabulary import first_tokens
from specjax.models.parts.room import Room
from specjax.state.kv import KVCache


class SlotConvolution(nn.Module):
    """Two causal convolutions over the slots, before and after a part of a layer.

    Their kernels are a base and what each slot adds to it, computed from what enters the part.

    Attributes:
        config: sizes of the kernels.
        width: D.
    """

    config: Convolution
    width: int

    def setup(self) -> None:
        c = self.config
        self.base = self.param("base", _identity, (2, c.kernel, self.width), jnp.float32)
        self.proj = GatheredLinear(2 * c.kernel * (self.width // c.group))

    def kernels(self, x: Float[Array, "B S D"]) -> Float[Array, "B S 2 taps D"]:
        """The kernels of each slot, for before and after."""
        own = self.proj(x).reshape(*x.shape[:2], 2, self.config.kernel, -1)
        return self.base + jnp.repeat(own, self.config.group, axis=-1)

    def __call__(self, x: Float[Array, "B S D"], kernel: Float[Array, "B S taps D"]) -> Float[Array, "B S D"]:
        """Each slot's weighted sum of itself and the slots before it."""
        before = [jnp.pad(x, ((0, 0), (tap, 0), (0, 0)))[:, : x.shape[1]] for tap in range(self.config.kernel)]
        return sum((kernel[:, :, tap] * rows for tap, rows in enumerate(before)), jnp.zeros_like(x))


def _identity(key: Array, shape: tuple[int, ...], dtype: Any) -> Float[Array, "2 taps D"]:
    del key
    return jnp.zeros(shape, dtype).at[:, 0].set(1)


class BlockLayer(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream.

    Attributes:
        config: of the drafter.
        window: see `DFlashConfig.windows`.
    """

    config: DFlashConfig
    window: int | None

    def setup(self) -> None:
        c = self.config
        self.attn_norm, self.mlp_norm = RMSNorm(c.norm_eps), RMSNorm(c.norm_eps)
        self.attention = BlockAttention(c, self.window)
        self.mlp = SwiGLU(c.mlp_width)
        if c.convolution is not None:
            self.attn_conv = SlotConvolution(c.convolution, c.width)
            self.mlp_conv = SlotConvolution(c.convolution, c.width)

    def inject(
        self, feature: Float[Array, "B T D"], positions: Int[Array, "B T"], valid: Bool[Array, "B T"], cache: KVCache
    ) -> KVCache:
        """The cache with keys and values of features, which are normed already."""
        return self.attention.inject(feature, positions, valid, cache)

    def __call__(
        self, x: Float[Array, "B S D"], positions: Int[Array, "B S"], sight: Sight, cache: KVCache
    ) -> tuple[Float[Array, "B S D"], KVCache]:
        """The residual stream after the layer, and the cache with the block at its end."""
        y, kernels = self.attn_norm(x), None
        if self.config.convolution is not None:
            kernels = self.attn_conv.kernels(y)
            y = self.attn_conv(y, kernels[:, :, 0])
        out, cache = self.attention(y, positions, sight, cache)
        x = x + (out if kernels is None else self.attn_conv(out, kernels[:, :, 1]))
        y, kernels = self.mlp_norm(x), None
        if self.config.convolution is not None:
            kernels = self.mlp_conv.kernels(y)
            y = self.mlp_conv(y, kernels[:, :, 0])
        out = self.mlp(y)
        return x + (out if kernels is None else self.mlp_conv(out, kernels[:, :, 1])), cache


class DFlash(nn.Module):
    """Fusion of the target's features, layers, final norm, and what chooses drafts from a block."""

    config: DFlashConfig

    def setup(self) -> None:
        c = self.config
        self.fc = GatheredLinear(c.width)
        self.hidden_norm, self.norm = RMSNorm(c.norm_eps), RMSNorm(c.norm_eps)
        self.layers = [BlockLayer(c, window) for window in c.windows]
        if c.own_embedding:
            self.embed = Embedding(c.vocab_size, c.width)
        if c.own_output:
            self.lm_head = VocabularyLinear(c.draft_vocab_size)
        if c.maps_tokens:
            self.tokens = self.param("tokens", first_tokens, (c.draft_vocab_size,), jnp.int32)
        if c.markov is not None:
            self.markov = markov_head(c.markov, c.vocab_size, c.draft_vocab_size)
        if c.confidence is not None:
            self.confidence = ConfidenceHead()
        if c.selector is not None:
            self.selector = PairScores(c.selector, c.vocab_size)

    def fuse(self, features: Float[Array, "... features"]) -> Float[Array, "... D"]:
        """One normed feature of inputs of several layers, which stand one behind the other."""
        return self.hidden_norm(self.fc(features))

    def inject(
        self,
        features: Float[Array, "B T features"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        caches: tuple[KVCache, ...],
    ) -> tuple[KVCache, ...]:
        """The caches with keys and values of the target's features at their positions."""
        fused = self.fuse(features)
        pairs = zip(self.layers, caches, strict=True)
        return tuple(layer.inject(fused, positions, valid, cache) for layer, cache in pairs)

    def __call__(
        self, embedded: Float[Array, "B S D"], start: Int[Array, "B"], caches: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "B S D"], tuple[KVCache, ...]]:
        """The normed hidden states of a block's slots, which begin at position `start`, and the caches."""
        c, slots = self.config, jnp.arange(embedded.shape[1])
        positions = start[:, None] + slots
        x, written = embedded * c.embedding_scale, []
        for layer, cache, causal in zip(self.layers, caches, c.causal, strict=True):
            seen = sight(positions, layer.window, c.window_from, causal=causal)
            x, cache = layer(x, positions, seen, cache)
            written.append(cache)
        return self.norm(x), tuple(written)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the drafter's own embedding table."""
        return self.embed(tokens)

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... M"]:
        """Float32 logits of the drafter's tokens by its own output head, else by its own embedding table."""
        return self.lm_head(normed) if self.config.own_output else self.embed.unembed(normed)

    def begin(self, batch: int) -> Any:
        """The Markov head's memory at the start of a block."""
        return self.markov.start(batch)

    def correct(self, token: Int[Array, "B"], hidden: Float[Array, "B D"], memory: Any) -> tuple[Any, ...]:
        """What the token before a slot adds to the slot's logits [B, M], its embedding, and the head's new memory."""
        return self.markov(token, hidden, memory)

    def sureness(self, hidden: Float[Array, "B D"], embedding: Float[Array, "B rank"] | None) -> Float[Array, "B"]:
        """The logit of the probability that a slot's draft is accepted if all before it are."""
        read = hidden if embedding is None else jnp.concatenate([hidden, embedding], axis=-1)
        return self.confidence(read)

    def select(
        self, token: Int[Array, "B"], hidden: Float[Array, "B D"], candidates: Int[Array, "B k"]
    ) -> Float[Array, "B k"]:
        """How well candidates of a slot follow the token before it."""
        return self.selector(token, hidden, candidates)

    def whole(
        self, tokens: Int[Array, "B S"], features: Float[Array, "B T features"], caches: tuple[KVCache, ...]
    ) -> Any:
        """Everything that the drafter has, to initialise it."""
        c, positions = self.config, tokens * 0
        caches = self.inject(features, positions, positions == 0, caches)
        embedded = self.embed(tokens) if c.own_embedding else self.fuse(features)
        normed, _ = self(embedded, positions[:, 0], caches)
        made: list[Any] = [self.project(normed)] if c.own_output else []
        embedding = None
        if c.markov is not None:
            made.append(self.markov(tokens[:, 0], normed[:, 0], self.markov.start(tokens.shape[0])))
            embedding = made[-1][1]
        if c.confidence is not None:
            made.append(self.sureness(normed[:, 0], embedding if c.confidence == "both" else None))
        if c.selector is not None:
            made.append(self.selector(tokens[:, 0], normed[:, 0], tokens))
        return normed, made


def make_caches(config: DFlashConfig, room: Room) -> tuple[KVCache, ...]:
    """The empty caches of all layers: rings for those that see a window.

    A ring has room for a window before a block, and for the block.
    """
    frequencies = rope_frequencies(config.rope_theta, config.rope_width)
    return tuple(
        room.cache(
            config.num_kv_heads,
            config.head_width,
            frequencies,
            None if window is None else window + config.block_size,
        )
        for window in config.windows
    )
