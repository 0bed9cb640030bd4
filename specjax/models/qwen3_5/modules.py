"""Linen modules of the Qwen3.5 family. Pure functions of parameters and state."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from specjax.layers.attention import GatedAttention
from specjax.layers.gated_delta_net import GatedDeltaNet
from specjax.layers.mlp import SwiGLU
from specjax.layers.moe import MoE
from specjax.layers.norm import RMSNorm
from specjax.models.parts.trunk import Call, Trunk
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.state.kv import KVCache


def feed_forward(config: Qwen35Config, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The second half of a layer: norm, dense or expert MLP, residual. Its modules belong to the calling layer."""
    normed = RMSNorm(config.norm_eps, name="mlp_norm")(x)
    if (moe := config.moe) is None:
        return x + SwiGLU(config.mlp_width, name="mlp")(normed)
    return x + MoE(moe, name="moe")(normed)


class AttentionLayer(nn.Module):
    """A full-attention layer; also the block of the MTP head."""

    config: Qwen35Config

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], call: Call, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """Attend over the cache, into which the valid rows are written first."""
        c = self.config
        normed = RMSNorm(c.norm_eps, name="attn_norm")(x)
        out, cache = GatedAttention(c, name="attention")(normed, call.positions, call.valid, cache)
        return feed_forward(c, x + out), cache


class DeltaNetLayer(nn.Module):
    """A gated delta net layer."""

    config: Qwen35Config

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], call: Call, state: Any) -> tuple[Float[Array, "B T D"], Any]:
        """Process the valid rows, which come first; with `rollback` the new state is a window to commit."""
        c = self.config
        assert call.n_valid is not None
        normed = RMSNorm(c.norm_eps, name="attn_norm")(x)
        out, state = GatedDeltaNet(c, name="delta_net")(normed, call.n_valid, state, rollback=call.rollback)
        return feed_forward(c, x + out), state


class Qwen35Trunk(Trunk):
    """The layers of Qwen3.5: full attention and gated delta nets."""

    config: Qwen35Config

    @nn.nowrap
    def make_layer(self, kind: str) -> AttentionLayer | DeltaNetLayer:
        """A layer of one of the two kinds of `layer_types`."""
        return AttentionLayer(self.config) if kind == FULL_ATTENTION else DeltaNetLayer(self.config)
