"""Experts behind a sigmoid router, with a shared expert."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.layers.experts import expert_weights, routed, summed
from specjax.layers.linear import Linear
from specjax.layers.mlp import SwiGLU
from specjax.models.parts.split import Divisible


@dataclass(frozen=True)
class MoEConfig(Divisible):
    """The expert branch.

    Attributes:
        num_experts, experts_per_token: E and the number chosen per token.
        expert_width, shared_expert_width: hidden widths F of a routed expert and of the shared one.
        selection_bias: whether a learned bias is added to the scores that choose the experts (not to their weights).
        normalize: whether the weights of the chosen experts are divided by their sum.
        scale: what the weights are multiplied with afterwards.
        groups, groups_per_token: in how many groups the experts are, and from how many of them a token's are chosen.

    Raises:
        ValueError: the numbers contradict each other.
    """

    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_expert_width: int
    selection_bias: bool = True
    normalize: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1

    def shard(self, parts: int) -> MoEConfig:
        """See `Divisible.shard`. Every part chooses among all experts, and has some of them."""
        return self.divided(parts, padded=["shared_expert_width"], kept=["num_experts"])

    def __post_init__(self) -> None:
        if self.groups == 1:
            return
        if self.groups < 1 or self.num_experts % self.groups or self.num_experts < 2 * self.groups:
            raise ValueError(f"{self.num_experts} experts do not make {self.groups} equal groups of two or more")
        if not 1 <= self.groups_per_token <= self.groups:
            raise ValueError(f"{self.groups_per_token} of {self.groups} groups are to be chosen from")


class SigmoidMoE(nn.Module):
    """Routed experts, chosen and weighted by sigmoid scores, plus a shared expert.

    The selection bias decides which experts are chosen, but not how much they weigh.

    Attributes:
        config: how many experts, and how they are chosen.
        expert_limit, shared_limit: bounds of the SwiGLU of routed experts and of the shared one, see
            `specjax.layers.mlp.swiglu`; 0 for none.

    Source: `Step3p7SparseMoeBlock` and `Glm4MoeMoE` in transformers; `build_moe_ffn` in llama.cpp's
    `src/llama-graph.cpp`.
    """

    config: MoEConfig
    expert_limit: float = 0.0
    shared_limit: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        c, width = self.config, x.shape[-1]
        weights = expert_weights(self, "experts_", c.num_experts, c.expert_width, width)
        flat = x.reshape(-1, width)
        scores = jax.nn.sigmoid(Linear(c.num_experts, jnp.float32, name="router")(flat))
        chosen_by = scores
        if c.selection_bias:
            chosen_by = scores + self.param("router_bias", nn.initializers.zeros, (c.num_experts,), jnp.float32)
        if c.groups > 1:
            chosen_by = _in_best_groups(chosen_by, c.groups, c.groups_per_token)
        _, expert = jax.lax.top_k(chosen_by, c.experts_per_token)
        weight = jnp.take_along_axis(scores, expert, axis=-1)
        if c.normalize:
            weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
        out = routed(flat, expert, weight * c.scale, weights, limit=self.expert_limit)
        shared = SwiGLU(c.shared_expert_width, self.shared_limit, summed=False, name="shared")(x)
        return summed(out.reshape(x.shape) + shared)


def _in_best_groups(scores: Float[Array, "N E"], groups: int, used: int) -> Float[Array, "N E"]:
    """-inf for experts outside the best groups: those whose two best experts have the largest sum."""
    grouped = scores.reshape(len(scores), groups, -1)
    pairs = jnp.sum(jax.lax.top_k(grouped, 2)[0], axis=-1)
    _, best = jax.lax.top_k(pairs, used)
    is_best = jnp.any(best[:, :, None] == jnp.arange(groups), axis=1)
    return jnp.where(is_best[:, :, None], grouped, -jnp.inf).reshape(scores.shape)
