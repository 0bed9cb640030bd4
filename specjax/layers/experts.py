"""Experts of which each part of a model has some."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.matmul import Weight, experts
from specjax.layers.linear import weight_of
from specjax.mesh.shards import exact, part_index, parts, total


def expert_weights(
    module: nn.Module, prefix: str, count: int, hidden: int, width: int
) -> tuple[Weight, Weight, Weight]:
    """The stacks of gates, ups and downs of E experts, of hidden width F, in a stream of width D.

    `count` is the number of experts of the whole model, of which each part has some.
    """
    count //= parts()
    gate, up = (weight_of(module, f"{prefix}{kind}", (count, hidden, width)) for kind in ("gate", "up"))
    return gate, up, weight_of(module, f"{prefix}down", (count, width, hidden))


def routed(
    x: Float[Array, "M D"],
    expert: Int[Array, "M k"],
    weight: Float[Array, "M k"],
    weights: tuple[Weight, Weight, Weight],
    **options: Any,
) -> Float[Array, "M D"]:
    """What the chosen experts say, by their factors. The parts' results want to be `summed`.

    Args:
        x: the activations.
        expert, weight: as in `pallas_kernels.matmul.experts`, by the numbers that experts have in the whole model.
        weights: see `expert_weights`.
        options: of `pallas_kernels.matmul.experts`.
    """
    if parts() > 1:
        expert, options = expert - part_index() * weights[0].shape[0], options | {"elsewhere": True}
    if not exact():
        return experts(x, expert, weight, *weights, **options)
    # Each answer comes from one part, and all parts add up the answers in the same order.
    rows, chosen = expert.shape
    one = jnp.ones((rows * chosen, 1), weight.dtype)
    answers = experts(jnp.repeat(x, chosen, axis=0), expert.reshape(-1, 1), one, *weights, **options)
    return jnp.einsum("mkd,mk->md", total(answers).reshape(rows, chosen, -1), weight.astype(x.dtype))


def summed(x: Array) -> Array:
    """The sum over all parts; if results are exact, every part has computed it whole already."""
    return x if exact() else total(x)
