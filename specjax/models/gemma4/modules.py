"""Linen modules of Gemma 4: the layer that target and assistant share, and the target's trunk.

Sources: transformers `models/gemma4/modeling_gemma4.py`; llama.cpp `src/models/gemma4.cpp`.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.rms_norm import rms_norm
from specjax.layers.experts import expert_weights, routed, summed
from specjax.layers.linear import Embedding, GatheredLinear, Linear, SummedLinear, apply_all
from specjax.layers.norm import RMSNorm
from specjax.mesh.columns import up_to
from specjax.models.gemma4.config import Gemma4Config, LayerConfig, MoEConfig
from specjax.models.parts.trunk import Call, Trunk
from specjax.state.kv import KVCache
from specjax.state.rotation import apply_rope


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """GELU in its tanh form, the activation of the whole family."""
    return jax.nn.gelu(x, approximate=True)


def geglu(gate: Float[Array, "... F"], up: Float[Array, "... F"]) -> Float[Array, "... F"]:
    """gelu(gate) * up. Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202."""
    return gelu(gate) * up


class Attention(nn.Module):
    """Grouped-query attention with RMS-normed q, k and v, unscaled scores, and keys and values that may be shared."""

    config: LayerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        seen_from: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """Write the valid rows' keys and values, if the layer has its own, then attend.

        Args:
            positions: rotary position of each row.
            seen_from: the row sees what a row at this position sees.
        """
        c, kind = self.config, self.config.attention
        batch, rows, width = x.shape
        frequencies = kind.frequencies()
        widths = {"q_proj": c.num_heads * kind.head_width}
        if c.own_kv:
            names = ("k_proj",) if c.value_is_key else ("k_proj", "v_proj")
            widths |= dict.fromkeys(names, kind.num_kv_heads * kind.head_width)
        q, *kv = apply_all(x, *(Linear(features, name=name) for name, features in widths.items()))
        q = RMSNorm(c.norm_eps, name="q_norm")(q.reshape(batch, rows, c.num_heads, kind.head_width))
        q = apply_rope(q, positions, frequencies)
        if c.own_kv:
            k, v = (y.reshape(batch, rows, kind.num_kv_heads, kind.head_width) for y in (kv[0], kv[-1]))
            k = apply_rope(RMSNorm(c.norm_eps, name="k_norm")(k), positions, frequencies)
            cache = cache.append(k, rms_norm(v, epsilon=c.norm_eps).astype(x.dtype), positions, valid)
        out = cache.attend(q, seen_from, scale=1.0)
        return SummedLinear(width, name="o_proj")(out.reshape(batch, rows, -1)), cache


class GeGLU(nn.Module):
    """down(geglu(gate(x), up(x))).

    Attributes:
        hidden: F.
    """

    hidden: int

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate, up = apply_all(x, Linear(self.hidden, name="gate_proj"), Linear(self.hidden, name="up_proj"))
        return SummedLinear(x.shape[-1], name="down_proj")(geglu(gate, up))


class Experts(nn.Module):
    """Routed experts whose router reads the residual stream by a norm and a scale of its own."""

    config: MoEConfig
    norm_eps: float

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], residual: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The experts' output for `x`; which ones, and by what weight, `residual` decides."""
        c, width = self.config, x.shape[-1]
        weights = expert_weights(self, "", c.num_experts, c.expert_width, width)
        router_scale = self.param("router_scale", nn.initializers.ones, (width,), jnp.float32)
        expert_scale = self.param("expert_scale", nn.initializers.ones, (c.num_experts,), jnp.float32)

        routed_by = rms_norm(residual.reshape(-1, width), epsilon=self.norm_eps) * router_scale * width**-0.5
        probabilities = jax.nn.softmax(Linear(c.num_experts, jnp.float32, name="router")(routed_by), axis=-1)
        weight, expert = jax.lax.top_k(probabilities, c.experts_per_token)
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True) * expert_scale[expert]
        return summed(routed(x.reshape(-1, width), expert, weight, weights, activation=geglu).reshape(x.shape))


class Layer(nn.Module):
    """Attention, feed-forward, per-layer embedding; every branch is normed on its way in and out."""

    config: LayerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        per_layer_input: Float[Array, "B T per_layer"] | None,
        positions: Int[Array, "B T"],
        seen_from: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        cache: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """The residual stream after the layer, and the cache; see `Attention` for positions."""
        c = self.config

        def norm(name: str, y: Array) -> Array:
            return RMSNorm(c.norm_eps, name=name)(y)

        out, cache = Attention(c, name="attention")(norm("attn_norm", x), positions, seen_from, valid, cache)
        x = x + norm("post_attn_norm", out)
        out = GeGLU(c.mlp_width, name="mlp")(norm("mlp_norm", x))
        if c.moe is not None:
            routed = Experts(c.moe, c.norm_eps, name="experts")(norm("experts_norm", x), x)
            out = norm("post_dense_norm", out) + norm("post_experts_norm", routed)
        x = x + norm("post_mlp_norm", out)
        if per_layer_input is not None:
            gate = gelu(Linear(c.per_layer_width, name="per_layer_gate")(x))
            out = Linear(x.shape[-1], name="per_layer_proj")(gate * per_layer_input)
            x = x + norm("post_per_layer_norm", out)
        scale = self.param("scale", nn.initializers.ones, (1,), jnp.float32)
        return (x * scale).astype(x.dtype), cache


class Gemma4Trunk(Trunk):
    """See `Trunk`. States are the caches of the layers that write one. Layers share their per-layer inputs."""

    config: Gemma4Config

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.per_layer_width:
            self.per_layer_embed = Embedding(c.vocab_size, c.num_layers * c.per_layer_width)
            self.per_layer_proj = GatheredLinear(c.num_layers * c.per_layer_width)
            self.per_layer_norm = RMSNorm(c.norm_eps)

    @nn.nowrap
    def make_layer(self, kind: LayerConfig) -> Layer:
        """The layer of an entry of `layer_kinds`."""
        return Layer(kind)

    def state_of(self, index: int) -> int:
        """Its own cache, or that of an earlier layer."""
        return self.config.cache_of(index)

    def shared(self, tokens: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Float[Array, "B T L per_layer"] | None:
        """The inputs of all layers, see `per_layer_inputs`; None if the model has none."""
        return self.per_layer_inputs(tokens, x) if self.config.per_layer_width else None

    def run_layer(
        self, index: int, x: Float[Array, "B T D"], call: Call, state: KVCache
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """With the layer's own input."""
        own = None if call.shared is None else call.shared[:, :, index]
        return self.layers[index](x, own, call.positions, call.positions, call.valid, state)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the embedding table times sqrt(D)."""
        return self.embed(tokens) * self.config.width**0.5

    def per_layer_inputs(
        self, tokens: Int[Array, "B T"], embedded: Float[Array, "B T D"]
    ) -> Float[Array, "B T L per_layer"]:
        """What each layer adds to its output gate: a table row of the token plus a projection of its embedding."""
        c = self.config
        shape = (*tokens.shape, c.num_layers, c.per_layer_width)
        projected = self.per_layer_norm((self.per_layer_proj(embedded) * c.width**-0.5).reshape(shape))
        own = self.per_layer_embed(tokens).reshape(shape) * c.per_layer_width**0.5
        return (projected + own) * 0.5**0.5

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of normed hidden states, softly capped."""
        logits, cap = super().project(normed), self.config.logit_cap
        return logits if cap is None else up_to(cap * jnp.tanh(logits / cap), self.config.vocab_size)

    def ends(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Everything but the layers, to initialise it."""
        x = self.embed_tokens(tokens)
        if self.config.per_layer_width:
            self.per_layer_inputs(tokens, x)
        return self.logits(self.norm(x))
