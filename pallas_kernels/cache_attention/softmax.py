"""What is done to scores besides the softmax: soft caps and sinks."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def capped(scores: Float[Array, "..."], soft_cap: float | None) -> Float[Array, "..."]:
    """Scores squeezed between -soft_cap and soft_cap, as Gemma 2 does (arXiv 2408.00118, 2.1); as they are if None."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def softmax(scores: Float[Array, "... S"], sinks: Float[Array, "..."] | None) -> Float[Array, "... S"]:
    """Weights of the last axis; a sink is one more score, whose weight nothing gets.

    Source: `eager_attention_forward` in transformers' `models/gpt_oss/modeling_gpt_oss.py`.
    """
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sinks = jnp.broadcast_to(sinks, scores.shape[:-1])[..., None]
    highest = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), sinks))
    weights = jnp.exp(scores - highest)
    return weights / (jnp.sum(weights, axis=-1, keepdims=True) + jnp.exp(sinks - highest))


def merged(
    highest: Float[Array, "... R parts"],
    total: Float[Array, "... R parts"],
    sums: Float[Array, "... R parts N"],
    sinks: Float[Array, "... R"],
) -> Float[Array, "... R N"]:
    """Weighted values of a cache from its parts' highest scores, totals of weights, and sums (flash-decoding).

    A sink of -inf is none. The values have one axis: sums of products with seven axes or more come out wrong on CPUs in
    jaxlib 0.10.2 and 0.11.0.
    """
    most = jnp.maximum(jnp.max(highest, axis=-1), sinks)
    base = jnp.where(jnp.isneginf(most), 0, most)
    share = jnp.exp(highest - base[..., None])
    whole = jnp.sum(total * share, axis=-1) + jnp.exp(sinks - base)
    summed = jnp.sum(share[..., None] * sums, axis=-2)  # a library's product could go by the number of rows
    return summed / jnp.where(whole == 0, 1, whole)[..., None]  # last, where it is no kernel of its own
