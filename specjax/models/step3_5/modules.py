"""Linen modules of the Step-3.5 family. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Linear, SummedLinear, apply_all
from specjax.layers.mlp import SwiGLU
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
from specjax.models.parts.moe import SigmoidMoE
from specjax.models.parts.trunk import Call, Trunk
from specjax.models.step3_5.config import FULL_ATTENTION, SLIDING_ATTENTION, LayerConfig, Step35Config
from specjax.state.kv import KVCache
from specjax.state.rotation import apply_rope

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
        call: Call,
        cache: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values at their positions, then attend."""
        c, kind = self.config, self.config.attention(self.layer)
        frequencies = call.shared[self.layer.attention]
        batch, rows, width = x.shape

        counts = {"q_proj": kind.num_heads, "k_proj": kind.num_kv_heads, "v_proj": kind.num_kv_heads}
        layers = [Linear(count * c.head_width, name=name) for name, count in counts.items()]
        *products, gate = apply_all(x, *layers, Linear(kind.num_heads, name="gate_proj"))
        q, k, v = (product.reshape(batch, rows, -1, c.head_width) for product in products)
        q, k = RMSNorm(c.norm_eps, name="q_norm")(q), RMSNorm(c.norm_eps, name="k_norm")(k)
        q, k = (apply_rope(rotated, call.positions, frequencies) for rotated in (q, k))
        if c.rope_factors and self.layer.attention == FULL_ATTENTION:
            cache = cache.rotating(frequencies)
        cache = cache.append(k, v, call.positions, call.valid)
        out = cache.attend(q, call.positions, scale=c.head_width**-0.5)
        gated = out * jax.nn.sigmoid(gate)[..., None]
        return SummedLinear(width, name="o_proj")(gated.reshape(batch, rows, -1)), cache


class DecoderLayer(nn.Module):
    """Attention and a dense or sparse MLP; also the block of an MTP head."""

    config: Step35Config
    layer: LayerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], call: Call, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """Attend over the cache, into which the valid rows are written first. The call shares `Frequencies`."""
        c, layer = self.config, self.layer
        out, cache = Attention(c, layer, name="attention")(RMSNorm(c.norm_eps, name="attn_norm")(x), call, cache)
        x = x + out
        normed = RMSNorm(c.norm_eps, name="mlp_norm")(x)
        if not layer.sparse:
            return x + SwiGLU(c.mlp_width, layer.mlp_limit, name="mlp")(normed), cache
        assert c.moe is not None
        return x + SigmoidMoE(c.moe, layer.expert_limit, layer.mlp_limit, name="moe")(normed), cache


def rotary(config: Step35Config, factors: Float[Array, "pairs"] | None) -> Frequencies:
    """The rotary frequencies of both kinds of attention; `factors` is the parameter `rope_factors`, if there is one."""
    full = jnp.asarray(rope_frequencies(config.full.rope_theta, config.full.rope_width))
    return {
        FULL_ATTENTION: full if factors is None else full / factors,
        SLIDING_ATTENTION: jnp.asarray(rope_frequencies(config.sliding.rope_theta, config.sliding.rope_width)),
    }


class Step35Trunk(Trunk):
    """The layers of Step-3.5. Hidden states leave it before the final norm."""

    config: Step35Config

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.full.rope_width // 2,), jnp.float32)

    @nn.nowrap
    def make_layer(self, kind: LayerConfig) -> DecoderLayer:
        """The layer of an entry of `layers`."""
        return DecoderLayer(self.config, kind)

    def shared(self, tokens: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Frequencies:
        """The rotary frequencies of both kinds of attention."""
        return rotary(self.config, self.rope_factors if self.config.rope_factors else None)

    def features(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The hidden states before the final norm."""
        return x

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of hidden states."""
        return self.project(self.norm(hidden))
