"""The released Gemma 4 models' real sizes: their shapes are built by abstract evaluation, which takes no memory."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from parameter_count import count
from scripted import start
from wants import drafting

from benchmarks.released_models import GEMMA4_31B
from specjax.decoding.decoder import Decoder
from specjax.decoding.loop import decode_chunk
from specjax.decoding.seats import feed_rows
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
E4B = Gemma4Config(
    vocab_size=VOCAB,
    width=2560,
    layer_types=interleaved_layer_types(42),
    num_heads=8,
    mlp_width=10240,
    sliding=sliding(2, 512),
    full=full(2),
    shared_kv_layers=18,
    per_layer_width=256,
)
VISION, AUDIO = 167_364_608, 304_824_608  # towers of both edge models, by transformers' classes


# The model card's counts.
@pytest.mark.parametrize(("config", "billions"), [(GEMMA4_31B, 30.7), (MOE_26B_A4B, 25.2)], ids=["31B", "26B-A4B"])
def test_parameters_of_the_released_models_add_up(config: Gemma4Config, billions: float) -> None:
    assert count(parameter_shapes(config)) / 1e9 == pytest.approx(billions, rel=0.01)


# The model card's totals, with all that the files hold: the towers, and keys and values of layers that use others'. Its
# "effective" counts leave out the embedding tables of tokens and of layers; they are given to a digit, not rounded.
@pytest.mark.parametrize(("config", "total", "effective"), [(E2B, 5.1, 2.3), (E4B, 8.0, 4.5)], ids=["E2B", "E4B"])
def test_parameters_of_the_edge_models_add_up(config: Gemma4Config, total: float, effective: float) -> None:
    shapes = parameter_shapes(config)["target"]
    assert count(shapes["per_layer_embed"]) == VOCAB * config.num_layers * 256
    unused = sum(
        2 * config.width * attention.num_kv_heads * attention.head_width
        for attention in map(config.attention, config.layer_types[-config.shared_kv_layers :])
    )
    everything = count(shapes) + unused + VISION + AUDIO
    assert everything / 1e9 == pytest.approx(total, rel=0.01)
    tables = count(shapes["per_layer_embed"]) + count(shapes["embed"])
    assert 0 <= (everything - tables) / 1e9 - effective < 0.1


def test_the_moe_model_reads_four_billion_parameters_per_token() -> None:
    moe = MOE_26B_A4B.moe
    assert moe is not None
    expert = 3 * MOE_26B_A4B.width * moe.expert_width
    unused = (moe.num_experts - moe.experts_per_token) * expert * MOE_26B_A4B.num_layers
    assert (count(parameter_shapes(MOE_26B_A4B)) - unused) / 1e9 == pytest.approx(3.8, rel=0.02)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GEMMA4_31B, marks=pytest.mark.slow),
        pytest.param(MOE_26B_A4B, marks=pytest.mark.slow),
        E2B,
        pytest.param(E4B, marks=pytest.mark.slow),
    ],
    ids=["31B", "26B-A4B", "E2B", "E4B"],
)
def test_the_whole_program_has_the_right_shapes(config: Gemma4Config) -> None:
    """Of the first twelve layers, with an assistant of four; its head scores 32 of 2048 centroids' tokens."""
    config = replace(config, layer_types=config.layer_types[:12], shared_kv_layers=min(config.shared_kv_layers, 6))
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
    decoder = Decoder(Gemma4Target(config), drafter, max_drafts=drafts)

    def program(params: dict) -> tuple:
        counts = jnp.ones((batch,), jnp.int32)
        tokens = jnp.zeros((batch, 16), jnp.int32)
        empty = decoder.init_state(batch, capacity, chunk=16)
        state, logits = feed_rows(decoder.target, drafter, params, empty, None, tokens, counts)
        started, _ = start(decoder, state, logits, counts, drafting(batch, n_max=drafts), counts)
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
