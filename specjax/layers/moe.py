"""Mixture of experts: softmax router with normalised top-k weights, and a gated shared expert."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.matmul import experts
from specjax.layers.linear import Linear, weight_of
from specjax.layers.mlp import SwiGLU


class MoE(nn.Module):
    """Routed experts plus a shared expert behind a sigmoid gate.

    Attributes:
        num_experts, experts_per_token: E and the number chosen per token.
        expert_width, shared_expert_width: hidden widths F of a routed expert and of the shared one.

    Source: `Qwen3_5MoeSparseMoeBlock` in transformers; llama.cpp's `src/models/qwen35moe.cpp`.
    """

    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_expert_width: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        width = x.shape[-1]
        in_shape = (self.num_experts, self.expert_width, width)
        gate = weight_of(self, "experts_gate", in_shape)
        up = weight_of(self, "experts_up", in_shape)
        down = weight_of(self, "experts_down", (self.num_experts, width, self.expert_width))

        flat = x.reshape(-1, width)
        probabilities = jax.nn.softmax(Linear(self.num_experts, name="router")(flat).astype(jnp.float32), axis=-1)
        weight, expert = jax.lax.top_k(probabilities, self.experts_per_token)
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
        routed = experts(flat, expert, weight, gate, up, down).reshape(x.shape)

        shared = SwiGLU(self.shared_expert_width, name="shared")(x)
        return routed + jax.nn.sigmoid(Linear(1, name="shared_gate")(x)) * shared
