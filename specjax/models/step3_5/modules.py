"""Linen modules of the Step-3.5 family. Pure functions of parameters and state."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Linear, apply_all, weight_of
from specjax.layers.mlp import SwiGLU
from specjax.layers.moe import apply_experts
from specjax.layers.norm import RMSNorm
from specjax.layers.rope import rope_frequencies
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
        routed = apply_experts(flat, expert, weight * moe.scale, gate, up, down, limit=self.layer.expert_limit)
        return routed.reshape(x.shape) + SwiGLU(moe.shared_expert_width, self.layer.mlp_limit, name="shared")(x)


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
        mlp = MoE(c, layer, name="moe") if layer.sparse else SwiGLU(c.mlp_width, layer.mlp_limit, name="mlp")
        return x + mlp(normed), cache


def rotary(config: Step35Config, factors: Float[Array, "pairs"] | None) -> Frequencies:
    """The rotary frequencies of both kinds of attention; `factors` is the parameter `rope_factors`, if there is one."""
    full = jnp.asarray(rope_frequencies(config.full.rope_theta, config.full.rope_width))
    return {
        FULL_ATTENTION: full if factors is None else full / factors,
        SLIDING_ATTENTION: jnp.asarray(rope_frequencies(config.sliding.rope_theta, config.sliding.rope_width)),
    }


class Step35Trunk(Trunk):
    """See `Trunk`. Hidden states that leave it are those before the final norm."""

    config: Step35Config

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.rope_factors:
            self.rope_factors = self.param("rope_factors", nn.initializers.ones, (c.full.rope_width // 2,), jnp.float32)

    @nn.nowrap
    def make_layers(self) -> list[DecoderLayer]:
        """One of each entry of `layers`."""
        return [DecoderLayer(self.config, layer) for layer in self.config.layers]

    def shared(self, tokens: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Frequencies:
        """The rotary frequencies of both kinds of attention."""
        return rotary(self.config, self.rope_factors if self.config.rope_factors else None)

    def features(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """As they are."""
        return x

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of hidden states."""
        return self.project(self.norm(hidden))
