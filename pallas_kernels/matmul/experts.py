"""Products with the matrices of experts, of which each row of activations is sent to a few."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.arguments import INTEGERS, expect_array
from pallas_kernels.dispatch import Form
from pallas_kernels.matmul.swiglu import swiglu
from pallas_kernels.matmul.weights import Activation, Blocks, Weight, as_weight, gated, swiglu_products

BLOCK_ROWS = 32
"""Rows that share one read of an expert's weights in prompts."""


def experts(
    x: Float[Array, "M D"],
    expert: Int[Array, "M k"],
    weight: Float[Array, "M k"],
    gate: Any,
    up: Any,
    down: Any,
    *,
    activation: Activation | None = None,
    limit: float = 0.0,
    elsewhere: bool = False,
    impl: str | None = None,
) -> Float[Array, "M D"]:
    """Sum over the k chosen experts of weight * down(activation(gate(x), up(x))), in x's dtype.

    Args:
        x: the activations.
        expert, weight: which experts a row is sent to, and the factors of what they say.
        gate, up, down: stacks of matrices [E, F, D], [E, F, D] and [E, D, F], of any kind, see `as_weight`.
        activation: default: `swiglu` with the limit.
        limit: see `swiglu`.
        elsewhere: whether `expert` has numbers outside of 0 .. E - 1. They stand for experts that are not here: nothing
            is read for them, and they add nothing.
        impl: name of an implementation; default: the first that fits, see `explain_experts`.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or an implementation that does not fit.
    """
    expect_array("experts", "x", x, "M D")
    expect_array("experts", "expert", expert, "M k", INTEGERS)
    expect_array("experts", "weight", weight, "M k")
    stacks = [as_weight(stack) for stack in (gate, up, down)]
    number, hidden, width = stacks[0].shape if len(stacks[0].shape) == 3 else (0, 0, 0)
    shapes = [stack.shape for stack in stacks]
    if shapes != [(number, hidden, width)] * 2 + [(number, width, hidden)] or width != x.shape[1]:
        raise ValueError(
            "experts: x is [M, D], gate and up are [E, F, D] and down is [E, D, F]; "
            f"got x {x.shape}, {', '.join(map(str, shapes))}"
        )
    if not expert.shape == weight.shape == (len(x), expert.shape[1]):
        raise ValueError(f"experts: expert and weight are [M, k]; got {expert.shape}, {weight.shape} with x {x.shape}")
    dims = {"M": len(x), "k": expert.shape[1], "E": number, "F": hidden, "D": width}
    return dispatch.choose(EXPERTS, impl, dims).run(x, expert, weight, *stacks, activation, limit, elsewhere)


def explain_experts(*, M: int, k: int, E: int, F: int, D: int, platform: str | None = None) -> str:
    """Which implementation `experts` chooses for these sizes, and why not the others.

    Their products are operations of their own.
    """
    return dispatch.explain(EXPERTS, {"M": M, "k": k, "E": E, "F": F, "D": D}, platform)


def _blocks(
    x: Float[Array, "M D"],
    expert: Int[Array, "M k"],
    weight: Float[Array, "M k"],
    gate: Weight,
    up: Weight,
    down: Weight,
    activation: Activation | None,
    limit: float,
    elsewhere: bool,
) -> Float[Array, "M D"]:
    """Reading only experts that are used.

    The M * k assignments are sorted by expert and cut into blocks that belong to one expert each; a block reads its
    expert's weights once. Few rows use blocks of one row, so that decoding reads exactly the chosen experts.
    """
    rows, top_k = expert.shape
    num_experts = gate.shape[0]
    assignments = rows * top_k
    block = 1 if assignments <= BLOCK_ROWS else BLOCK_ROWS
    num_blocks = -(-assignments // block) + (min(num_experts, assignments) if block > 1 else 0)

    if elsewhere:
        expert = jnp.where((expert >= 0) & (expert < num_experts), expert, num_experts)
    order = jnp.argsort(expert.reshape(-1), stable=True)
    sorted_expert = expert.reshape(-1)[order]
    counts = jnp.bincount(sorted_expert, length=num_experts)
    blocks_of = -(-counts // block)
    first_block = jnp.cumsum(blocks_of) - blocks_of
    first_assignment = jnp.cumsum(counts) - counts
    rank = jnp.arange(assignments) - first_assignment[sorted_expert]
    slot = first_block[sorted_expert] * block + rank  # where each sorted assignment stands in the padded blocks

    if elsewhere:
        slot = jnp.where(sorted_expert < num_experts, slot, num_blocks * block)  # behind the end, where nothing is

    padded = jnp.zeros((num_blocks * block, x.shape[1]), x.dtype).at[slot].set(x[order // top_k])
    block_expert = jnp.searchsorted(jnp.cumsum(blocks_of), jnp.arange(num_blocks), side="right")
    block_expert = jnp.where(block_expert < num_experts, block_expert, -1)  # surplus blocks are all zeros

    given, blocks = padded.reshape(num_blocks, block, -1), Blocks(block_expert, counts)
    if activation is None:
        out = swiglu_products(given, gate, up, down, limit, blocks)
    else:
        out = gated(given, gate, up, down, activation, blocks)
    out = out.reshape(num_blocks * block, -1)
    out = out.at[slot].get(mode="fill", fill_value=0) if elsewhere else out[slot]
    per_assignment = jnp.zeros((assignments, x.shape[1]), x.dtype).at[order].set(out)
    return jnp.einsum("mkd,mk->md", per_assignment.reshape(rows, top_k, -1), weight.astype(x.dtype))


def _reference(
    x: Float[Array, "M D"],
    expert: Int[Array, "M k"],
    weight: Float[Array, "M k"],
    gate: Weight,
    up: Weight,
    down: Weight,
    activation: Activation | None,
    limit: float,
    elsewhere: bool,
) -> Float[Array, "M D"]:
    """Every row through every expert, of which only those that were chosen have a factor."""
    del elsewhere  # such numbers are those of no expert
    out = jnp.zeros(x.shape, jnp.float32)
    for number in range(gate.shape[0]):
        all_rows = Blocks(jnp.array([number]), jnp.where(jnp.arange(gate.shape[0]) == number, len(x), 0))
        g, u = (stack.matmul(x[None], jnp.float32, all_rows) for stack in (gate, up))
        hidden = swiglu(g, u, limit) if activation is None else activation(g, u)
        factor = jnp.sum(jnp.where(expert == number, weight, 0), axis=1, keepdims=True)
        out += factor * down.matmul(hidden, jnp.float32, all_rows)[0]
    return out.astype(x.dtype)


EXPERTS = dispatch.operation("matmul.experts", xla_blocks=Form(_blocks), reference=Form(_reference))
