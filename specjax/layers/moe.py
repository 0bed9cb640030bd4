"""Mixture of experts: softmax router with normalised top-k weights, and a gated shared expert."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.layers.linear import Linear, Weight, matmul_transposed, weight_of
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
    activation: Callable[[Array, Array], Array] = swiglu,
) -> Float[Array, "M D"]:
    """Sum over the k chosen experts of weight * down(activation(gate(x), up(x))), reading only experts that are used.

    `gate` and `up` are [E, F, D], `down` [E, D, F].

    The M * k assignments are sorted by expert and cut into blocks that belong to one expert each; a scan reads one
    expert's weights per block. Few rows use blocks of one row, so that decoding reads exactly the chosen experts.
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
    block_expert = jnp.minimum(block_expert, num_experts - 1)  # surplus blocks are all zeros
    blocks = (block_expert, padded.reshape(num_blocks, block, -1))
    if isinstance(gate, Observed):
        assert isinstance(up, Observed)
        assert isinstance(down, Observed)
        _record(gate, up, down, blocks, counts, activation)
    gate, up, down = (w.weight if isinstance(w, Observed) else w for w in (gate, up, down))

    def one_block(_: None, block_input: tuple[Array, Array]) -> tuple[None, Array]:
        index, rows_in = block_input
        hidden = activation(matmul_transposed(rows_in, gate[index]), matmul_transposed(rows_in, up[index]))
        return None, matmul_transposed(hidden, down[index])

    _, out = jax.lax.scan(one_block, None, blocks)
    out = out.reshape(num_blocks * block, -1)[slot]
    per_assignment = jnp.zeros((assignments, x.shape[1]), x.dtype).at[order].set(out)
    return jnp.einsum("mkd,mk->md", per_assignment.reshape(rows, top_k, -1), weight.astype(x.dtype))


def _record(
    gate: Observed,
    up: Observed,
    down: Observed,
    blocks: tuple[Int[Array, "n"], Float[Array, "n rows D"]],
    counts: Int[Array, "E"],
    activation: Callable[[Array, Array], Array],
) -> None:
    """Tell the observers what each expert is multiplied with; its hidden values are computed for that once more."""

    def one_block(_: None, block: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        index, rows = block
        hidden = activation(matmul_transposed(rows, gate.weight[index]), matmul_transposed(rows, up.weight[index]))
        return None, (sum_of_squares(rows), sum_of_squares(hidden))

    _, (of_inputs, of_hidden) = jax.lax.scan(one_block, None, blocks)
    of_inputs, of_hidden = (jax.ops.segment_sum(x, blocks[0], len(counts)) for x in (of_inputs, of_hidden))
    for weight, sums in ((gate, of_inputs), (up, of_inputs), (down, of_hidden)):
        weight.record(weight.path, sums, counts)


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
