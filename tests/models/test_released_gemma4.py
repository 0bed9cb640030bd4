"""The released Gemma 4 models' real sizes: their shapes are built by abstract evaluation, which takes no memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from specjax.decoding.decoder import Decoder
from specjax.decoding.draft_control import DraftConfig
from specjax.decoding.loop import decode_chunk
from specjax.decoding.prefill import prefill_chunk, start_decoding
from specjax.models.gemma4 import (
    AttentionConfig,
    CentroidHead,
    Gemma4Assistant,
    Gemma4AssistantConfig,
    Gemma4Config,
    Gemma4Target,
    MoEConfig,
    assistant_shapes,
    interleaved_layer_types,
    parameter_shapes,
)

VOCAB = 262144


def sliding(kv_heads: int, window: int) -> AttentionConfig:
    return AttentionConfig(kv_heads, head_width=256, rope_theta=1e4, rope_width=256, window=window)


def full(kv_heads: int) -> AttentionConfig:
    return AttentionConfig(kv_heads, head_width=512, rope_theta=1e6, rope_width=128)


DENSE_31B = Gemma4Config(
    vocab_size=VOCAB,
    width=5376,
    layer_types=interleaved_layer_types(60),
    num_heads=32,
    mlp_width=21504,
    sliding=sliding(16, 1024),
    full=full(4),
    full_value_is_key=True,
)
MOE_26B_A4B = Gemma4Config(
    vocab_size=VOCAB,
    width=2816,
    layer_types=interleaved_layer_types(30),
    num_heads=16,
    mlp_width=2112,
    sliding=sliding(8, 1024),
    full=full(2),
    full_value_is_key=True,
    moe=MoEConfig(num_experts=128, experts_per_token=8, expert_width=704),
)
E2B = Gemma4Config(
    vocab_size=VOCAB,
    width=1536,
    layer_types=interleaved_layer_types(35, 5),
    num_heads=8,
    mlp_width=6144,
    sliding=sliding(1, 512),
    full=full(1),
    shared_kv_layers=20,
    wide_shared_mlp=True,
    per_layer_width=256,
)


def count(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


# The model card's counts: 30.7 and 25.2 billion, and for E2B 2.3 billion "effective" ones, without the per-layer
# embedding table.
@pytest.mark.parametrize(("config", "billions"), [(DENSE_31B, 30.7), (MOE_26B_A4B, 25.2)], ids=["31B", "26B-A4B"])
def test_parameters_of_the_released_models_add_up(config: Gemma4Config, billions: float) -> None:
    assert count(parameter_shapes(config)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_edge_model_has_two_billion_parameters_beside_its_per_layer_table() -> None:
    shapes = parameter_shapes(E2B)["target"]
    table = count(shapes["per_layer_embed"])
    assert table == VOCAB * 35 * 256
    assert (count(shapes) - table) / 1e9 == pytest.approx(2.3, rel=0.01)


def test_the_moe_model_reads_four_billion_parameters_per_token() -> None:
    moe = MOE_26B_A4B.moe
    assert moe is not None
    expert = 3 * MOE_26B_A4B.width * moe.expert_width
    unused = (moe.num_experts - moe.experts_per_token) * expert * MOE_26B_A4B.num_layers
    assert (count(parameter_shapes(MOE_26B_A4B)) - unused) / 1e9 == pytest.approx(3.8, rel=0.02)


@pytest.mark.parametrize("config", [DENSE_31B, MOE_26B_A4B, E2B], ids=["31B", "26B-A4B", "E2B"])
def test_the_whole_program_has_the_right_shapes(config: Gemma4Config) -> None:
    """Of the first ten layers, with an assistant of four; its head scores 32 of 2048 centroids' tokens."""
    config = replace(config, layer_types=config.layer_types[:10], shared_kv_layers=min(config.shared_kv_layers, 5))
    assistant = Gemma4AssistantConfig(
        vocab_size=VOCAB,
        target_width=config.width,
        width=256,
        layer_types=interleaved_layer_types(4, 4),
        num_heads=config.num_heads,
        mlp_width=2048,
        sliding=config.sliding,
        full=config.full,
        centroids=CentroidHead(num_centroids=2048, selected=32),
    )
    drafter = Gemma4Assistant(config, assistant)
    batch, drafts, rounds, capacity = 2, 3, 4, 4096
    decoder = Decoder(Gemma4Target(config), drafter, draft=DraftConfig(n_max=drafts))

    def program(params: dict) -> tuple:
        counts = jnp.ones((batch,), jnp.int32)
        logits = jnp.zeros((batch, VOCAB), jnp.float32)
        tokens = jnp.zeros((batch, 16), jnp.int32)
        empty = decoder.init_state(batch, capacity, chunk=16)
        state, logits = prefill_chunk(decoder.target, drafter, params, empty, tokens, counts, logits)
        started = start_decoding(decoder, state, logits, counts, counts, jnp.uint32(0))
        return decode_chunk(decoder, params, started, rounds)

    shapes = {**parameter_shapes(config), **assistant_shapes(assistant)}
    params = jax.tree.map(lambda x: x if x.dtype == jnp.int32 else jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), shapes)
    state, record = jax.eval_shape(program, params)
    assert record.rounds.tokens.shape == (rounds, batch, drafts + 1)
    caches = state.sequences.layers
    assert len(caches) == config.num_layers - config.shared_kv_layers
    for cache, kind in zip(caches, config.layer_types, strict=False):
        attention = config.attention(kind)
        slots = capacity if attention.window is None else attention.window + 16
        assert cache.k.shape == (batch, slots, attention.num_kv_heads, attention.head_width)
    assert state.sequences.drafter.hidden.shape == (batch, config.width)
