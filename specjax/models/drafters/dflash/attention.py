"""Attention of a block of slots over the context's injected keys and values and over the block itself."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.linear import Linear, SummedLinear
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.models.drafters.dflash.config import DFlashConfig
from specjax.models.drafters.dflash.sight import Sight
from specjax.state.kv import KVCache
from specjax.state.rotation import apply_rope


class BlockAttention(nn.Module):
    """Grouped-query attention with RMS-normed q and k.

    Attributes:
        config: of the drafter.
        window: see `DFlashConfig.windows`.
    """

    config: DFlashConfig
    window: int | None

    def setup(self) -> None:
        c = self.config
        self.q_proj = Linear(c.num_heads * c.head_width)
        self.k_proj = Linear(c.num_kv_heads * c.head_width)
        self.v_proj = Linear(c.num_kv_heads * c.head_width)
        self.o_proj = SummedLinear(c.width)
        self.q_norm, self.k_norm = RMSNorm(c.norm_eps), RMSNorm(c.norm_eps)

    def _heads(self, x: Float[Array, "B T hidden"]) -> Float[Array, "B T heads N"]:
        return x.reshape(*x.shape[:2], -1, self.config.head_width)

    def _rotated(self, x: Float[Array, "B T heads N"], positions: Int[Array, "B T"]) -> Float[Array, "B T heads N"]:
        return apply_rope(x, positions, rope_frequencies(self.config.rope_theta, self.config.rope_width))

    def inject(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], valid: Bool[Array, "B T"], cache: KVCache
    ) -> KVCache:
        """The cache with keys and values of the valid rows at their positions."""
        k = self._rotated(self.k_norm(self._heads(self.k_proj(x))), positions)
        return cache.append(k, self._heads(self.v_proj(x)), positions, valid)

    def __call__(
        self, x: Float[Array, "B S D"], positions: Int[Array, "B S"], sight: Sight, cache: KVCache
    ) -> tuple[Float[Array, "B S D"], KVCache]:
        """Attention of the slots; the cache has their keys and values at the end, to be overwritten."""
        q = self._rotated(self.q_norm(self._heads(self.q_proj(x))), positions)
        cache = self.inject(x, positions, jnp.ones_like(positions, bool), cache)
        scale = self.config.head_width**-0.5
        if self.window is None:
            out = cache.attend(q, sight.last, scale=scale)
        else:
            out = _attend(q, cache, positions[:, -1:], sight, scale)
        return self.o_proj(out.reshape(*x.shape[:2], -1)), cache


def _attend(
    q: Float[Array, "B S H N"], ring: KVCache, newest: Int[Array, "B 1"], sight: Sight, scale: float
) -> Float[Array, "B S H N"]:
    """Attention over a ring whose newest entry is of a position. A ring is short: all of it is decoded.

    `cache_attention` cannot do this: it knows windows that end at a row's own position alone.
    """
    positions = newest - (newest - jnp.arange(ring.capacity)) % ring.capacity
    seen = (positions[:, None] >= sight.first[..., None]) & (positions[:, None] <= sight.last[..., None])
    batch, slots, heads, width = q.shape
    grouped = q.astype(jnp.float32).reshape(batch, slots, -1, heads // ring.keys.shape[2], width)
    scores = jnp.einsum("bsgrn,btgn->bgrst", grouped, ring.keys) * scale
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf), axis=-1)
    out = jnp.einsum("bgrst,btgn->bsgrn", weights, ring.values)
    return out.reshape(q.shape).astype(q.dtype)
