"""The released models' real sizes: their shapes are built by abstract evaluation, which takes no memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from parameter_count import count
from scripted import start
from tiny_models import DENSE
from wants import drafting

from benchmarks.released_models import QWEN36_27B, QWEN36_35B_A3B
from specjax.decoding.decoder import Decoder
from specjax.decoding.loop import decode_chunk
from specjax.decoding.seats import feed_rows
from specjax.models.qwen3_5 import (
    Qwen35Config,
    Qwen35MTP,
    Qwen35Target,
    hybrid_layer_types,
    init_params,
    parameter_shapes,
)


# What the released files hold, by their listings: the trunk alone 26.9 and 34.66 billion (GGUF), trunk, MTP block and
# vision tower together 27.78 (the checkpoint's index) and 35.95 billion (`general.parameter_count` of a GGUF with all
# of them). The towers have 0.46 and 0.447 billion.
@pytest.mark.parametrize(
    ("config", "trunk", "text"),
    [(QWEN36_27B, 26.9, 27.78 - 0.46), (QWEN36_35B_A3B, 34.66, 35.952 - 0.447)],
    ids=["27B", "35B-A3B"],
)
def test_parameters_of_the_released_models_add_up(config: Qwen35Config, trunk: float, text: float) -> None:
    shapes = parameter_shapes(config)
    assert count(shapes["target"]) / 1e9 == pytest.approx(trunk, rel=0.001)
    assert count(shapes) / 1e9 == pytest.approx(text, rel=0.001)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


def test_shapes_are_those_of_initialised_parameters() -> None:
    for config in (replace(QWEN36_27B, layer_types=hybrid_layer_types(4, 3)), replace(DENSE, mtp_layers=0)):
        initialised = jax.eval_shape(partial(init_params, config), jax.eval_shape(lambda: jax.random.key(0)))
        assert parameter_shapes(config) == initialised


def test_the_moe_model_reads_three_billion_parameters_per_token() -> None:
    config = QWEN36_35B_A3B
    assert config.moe is not None
    one_expert = 3 * config.width * config.moe.expert_width
    unused = (config.moe.num_experts - config.moe.experts_per_token) * one_expert * config.num_layers
    read = count(parameter_shapes(config)["target"]) - unused - config.vocab_size * config.width  # of the table, a row
    assert read / 1e9 == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize(
    "config", [pytest.param(QWEN36_27B, marks=pytest.mark.slow), QWEN36_35B_A3B], ids=["27B", "35B-A3B"]
)
def test_the_whole_program_has_the_right_shapes(config: Qwen35Config) -> None:
    config = replace(config, layer_types=config.layer_types[:4])
    batch, drafts, rounds = 2, 3, 4
    decoder = Decoder(Qwen35Target(config), Qwen35MTP(config), max_drafts=drafts, rollback="snapshot")

    def program(params: dict) -> tuple:
        counts = jnp.ones((batch,), jnp.int32)
        tokens = jnp.zeros((batch, 16), jnp.int32)
        empty = decoder.init_state(batch, 4096)
        state, logits = feed_rows(decoder.target, decoder.drafter, params, empty, None, tokens, counts)
        started, _ = start(decoder, state, logits, counts, drafting(batch, n_max=drafts), counts)
        return decode_chunk(decoder, params, started, rounds)

    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), parameter_shapes(config))
    state, record = jax.eval_shape(program, params)
    assert record.rounds.tokens.shape == (rounds, batch, drafts + 1)
    recurrent, cache = state.sequences.layers[0], state.sequences.layers[3]
    assert recurrent.slots.shape == (batch, drafts + 1, config.linear_value_heads, 128, 128)
    assert recurrent.slots.dtype == jnp.float32
    assert cache.k.shape == (batch, 4096, config.num_kv_heads, 256)
