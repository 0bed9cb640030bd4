"""Mixture of experts: softmax router with normalised top-k weights, and a gated shared expert."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.quant_matmul import QTensor, quant_swiglu
from specjax.layers.linear import Linear, Weight, matmul_blocks, weight_of
from specjax.layers.mlp import SwiGLU, swiglu
from specjax.layers.observed import Observed, sum_of_squares

BLOCK_ROWS = 32
"""Rows that share one read of an expert's weights in prefill."""


def apply_experts(
    x: Float[Array, "M D"],
    expert: Int[Array, "M k"],
    weight: Float[Array, "M k"],
    gate: Weight | Observed,
    up: Weight | Observed,
    down: Weight | Observed,
    *,
    activation: Callable[[Array, Array], Array] | None = None,
    limit: float = 0.0,
) -> Float[Array, "M D"]:
    """Sum over the k chosen experts of weight * down(activation(gate(x), up(x))), reading only experts that are used.

    `gate` and `up` are [E, F, D], `down` [E, D, F]. Without an activation it is `swiglu` with the limit.

    The M * k assignments are sorted by expert and cut into blocks that belong to one expert each; a block reads its
    expert's weights once. Few rows use blocks of one row, so that decoding reads exactly the chosen experts.
    """
    rows, top_k = expert.shape
    num_experts = gate.shape[0]
    assignments = rows * top_k
    block = 1 if assignments <= BLOCK_ROWS else BLOCK_ROWS
    num_blocks = -(-assignments // block) + (min(num_experts, assignments) if block > 1 else 0)

    order = jnp.argsort(expert.reshape(-1), stable=True)
    sorted_expert = expert.reshape(-1)[order]
    counts = jnp.bincount(sorted_expert, length=num_experts)
    blocks_of = -(-counts // block)
    first_block = jnp.cumsum(blocks_of) - blocks_of
    first_assignment = jnp.cumsum(counts) - counts
    rank = jnp.arange(assignments) - first_assignment[sorted_expert]
    slot = first_block[sorted_expert] * block + rank  # where each sorted assignment stands in the padded blocks

    padded = jnp.zeros((num_blocks * block, x.shape[1]), x.dtype).at[slot].set(x[order // top_k])
    block_expert = jnp.searchsorted(jnp.cumsum(blocks_of), jnp.arange(num_blocks), side="right")
    block_expert = jnp.where(block_expert < num_experts, block_expert, -1)  # surplus blocks are all zeros

    blocks = padded.reshape(num_blocks, block, -1)
    if activation is None and isinstance(gate, QTensor) and isinstance(up, QTensor) and isinstance(down, QTensor):
        out = quant_swiglu(blocks, gate, up, down, limit=limit, index=block_expert)
    else:
        activation = activation or partial(swiglu, limit=limit)
        given = (gate, up, down)
        gate, up, down = (w.weight if isinstance(w, Observed) else w for w in given)
        hidden = activation(matmul_blocks(blocks, gate, block_expert), matmul_blocks(blocks, up, block_expert))
        out = matmul_blocks(hidden, down, block_expert)
        for w, x_blocks in zip(given, (blocks, blocks, hidden), strict=True):
            if isinstance(w, Observed):
                of_blocks = jax.vmap(sum_of_squares)(x_blocks)
                w.record(w.path, jax.ops.segment_sum(of_blocks, block_expert, num_experts), counts)
    out = out.reshape(num_blocks * block, -1)[slot]
    per_assignment = jnp.zeros((assignments, x.shape[1]), x.dtype).at[order].set(out)
    return jnp.einsum("mkd,mk->md", per_assignment.reshape(rows, top_k, -1), weight.astype(x.dtype))


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
        routed = apply_experts(flat, expert, weight, gate, up, down).reshape(x.shape)

        shared = SwiGLU(self.shared_expert_width, name="shared")(x)
        return routed + jax.nn.sigmoid(Linear(1, name="shared_gate")(x)) * shared
