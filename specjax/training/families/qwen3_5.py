"""Training Qwen3.5: the bundled model, and one MTP block that is chained with itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from specjax.models.protocol import Params
from specjax.models.qwen3_5 import Qwen35Config, Qwen35MTP, Qwen35Target, hybrid_layer_types, init_params
from specjax.state import KVCache, KVTypes
from specjax.training.families.base import Family, Predictions, delayed, run_trunk, scale_residual_writers
from specjax.training.recipe import Recipe


def demo_config(vocab_size: int = 4096) -> Qwen35Config:
    """About 6.4 M parameters: four gated delta nets, two full-attention layers, one MTP block."""
    return Qwen35Config(
        vocab_size=vocab_size,
        width=256,
        layer_types=hybrid_layer_types(6, full_attention_interval=3),
        mlp_width=640,
        num_heads=4,
        num_kv_heads=2,
        head_width=64,
        rope_width=32,
        rope_theta=10_000.0,
        rope_sections=(6, 5, 5, 0),
        conv_width=4,
        linear_key_heads=2,
        linear_value_heads=4,
        linear_key_width=64,
        linear_value_width=64,
        context_length=2048,
        tied_embeddings=True,
        mtp_layers=1,
    )


def initial(config: Qwen35Config, key: PRNGKeyArray) -> Params:
    """Random parameters to begin with."""
    return scale_residual_writers(init_params(config, key), config.num_layers)


def predict(
    config: Qwen35Config, params: Params, tokens: Int[Array, "B T"], mtp_steps: int, mtp_sequences: int
) -> Predictions:
    """Logits of the trunk, and of `mtp_steps` chained steps of the MTP block on the first `mtp_sequences` rows.

    Step 1 pairs the token at p with the trunk's hidden row of p - 1; step j with the hidden row of step j - 1, as in
    drafting.
    """
    trunk, block = run_trunk(Qwen35Target(config), params, tokens), Qwen35MTP(config)
    shared = {"target": jax.lax.stop_gradient(params["target"]), "mtp": params.get("mtp")}
    tokens, hidden = tokens[:mtp_sequences], trunk.hidden[:mtp_sequences]
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    valid = jnp.ones_like(tokens, bool)
    logits = []
    for _ in range(mtp_steps):
        cache = KVCache.zeros(tokens.shape[0], tokens.shape[1], config.num_kv_heads, config.head_width, KVTypes())
        hidden, _ = block.run(shared, tokens, delayed(hidden), positions, valid, cache)
        logits.append(block.logits(shared, hidden))
    return Predictions(trunk.logits, tuple(logits))


FAMILY = Family(
    name="qwen3_5",
    description="Qwen3.5-style model with an MTP block, trained on the Python standard library",
    config_type=Qwen35Config,
    demo_config=demo_config(),
    recipe=Recipe(steps=1400),
    initial=initial,
    predict=predict,
)
