"""Mixture of experts: softmax router with normalised top-k weights, and a gated shared expert."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.layers.experts import expert_weights, routed, summed
from specjax.layers.linear import Linear
from specjax.layers.mlp import SwiGLU


class MoE(nn.Module):
    """Routed experts plus a shared expert behind a sigmoid gate.

    Attributes:
        config: says E and the number chosen per token as `num_experts` and `experts_per_token`, and the hidden widths
            F of a routed expert and of the shared one as `expert_width` and `shared_expert_width`.

    Source: `Qwen3_5MoeSparseMoeBlock` in transformers; llama.cpp's `src/models/qwen35moe.cpp`.
    """

    config: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        c, width = self.config, x.shape[-1]
        weights = expert_weights(self, "experts_", c.num_experts, c.expert_width, width)
        flat = x.reshape(-1, width)
        probabilities = jax.nn.softmax(Linear(c.num_experts, name="router")(flat).astype(jnp.float32), axis=-1)
        weight, expert = jax.lax.top_k(probabilities, c.experts_per_token)
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
        out = routed(flat, expert, weight, weights).reshape(x.shape)

        shared = SwiGLU(c.shared_expert_width, summed=False, name="shared")(x)
        return summed(out + jax.nn.sigmoid(Linear(1, name="shared_gate")(x)) * shared)
