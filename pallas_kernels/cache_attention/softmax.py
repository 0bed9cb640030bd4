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
