"""Whole rounds become programs for other machines: with the kernels of those machines, and none of this one's."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import specjax
from pallas_kernels import native, using
from specjax.decoding.decoder import Decoder
from specjax.decoding.seats import feed_rows
from specjax.models import registry
from specjax.models.qwen3_5 import parameter_shapes
from specjax.state import KVTypes

KERNELS = {"causal_conv1d", "gated_delta_commit", "gated_delta_verify", "quant_matmul", "cache_attention"}
PLATFORMS = ("tpu", "gpu")
NATIVE = "specjax_"
"""How the names of native kernels begin."""


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("compile_step")


def program(step: Any, name: str, platform: str) -> tuple[Decoder, Any]:
    """Rounds of a model by name, "bundled" or a number of layers of Qwen3.6-27B, and shapes of its parameters."""
    kind = "Q8_0" if name == "bundled" else "Q4_K"
    config = bundled().target.config if name == "bundled" else step.shape_of_27b(int(name))
    with using(platform=platform):
        params = step.packed_shapes(config, kind)
    return Decoder(*registry.build(config), max_drafts=3), params


@cache
def bundled() -> specjax.Model:
    return specjax.load()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["bundled", "4", pytest.param("64", marks=pytest.mark.slow)])
def test_rounds_lower_with_the_kernels_of_their_platform(step: Any, name: str, platform: str) -> None:
    lowered = step.lowered_step(*program(step, name, platform), platform)
    assert set(step.kernels_in(lowered)) == KERNELS
    assert not [target for target, _ in step.custom_calls(lowered) if target.startswith(NATIVE)]


@pytest.mark.parametrize(
    ("platform", "products", "attention"),
    [("tpu", "quant_matmul", "cache_attention"), ("gpu", "quant_matmul_prefill", "cache_attention_prefill")],
)
def test_prompts_lower_with_the_kernels_of_their_platform(
    step: Any, platform: str, products: str, attention: str
) -> None:
    """More rows than kernels for verification take."""
    decoder, params = program(step, "bundled", platform)
    decoder = replace(decoder, kv_types=KVTypes("f16", "f16"))
    with using(step.kernels_of(platform), platform=platform):
        state = step.state_shapes(decoder, 1, 256).sequences
        inputs = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((1, 64), (1,))]
        traced = feed_rows.trace(decoder.target, decoder.drafter, params, state, None, *inputs)
        lowered = traced.lower(lowering_platforms=(step.LOWERING[platform],))
    assert {"causal_conv1d", "gated_delta_prefill", products, attention} <= set(step.kernels_in(lowered))
    assert not [target for target, _ in step.custom_calls(lowered) if target.startswith(NATIVE)]


def test_the_released_shape_has_as_many_parameters_as_the_released_model(step: Any) -> None:
    leaves = jax.tree.leaves(parameter_shapes(step.shape_of_27b(64))["target"])
    assert sum(math.prod(leaf.shape) for leaf in leaves) / 1e9 == pytest.approx(26.9, rel=0.001)


def test_the_shapes_are_those_of_a_model_that_is_loaded(step: Any) -> None:
    loaded = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), bundled().params)
    assert program(step, "bundled", jax.default_backend())[1] == loaded


def test_choices_follow_the_platform_and_not_the_machine(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels that are named: a program for a TPU calls nothing that only this machine has."""
    monkeypatch.setattr(step, "PALLAS", {})
    decoder, params = program(step, "bundled", "cpu")
    targets = {
        platform: {target for target, _ in step.custom_calls(step.lowered_step(decoder, params, platform))}
        for platform in ("cpu", "tpu")
    }
    assert not [target for target in targets["tpu"] if target.startswith((NATIVE, *step.KERNEL_CALLS))]
    if native.available():
        assert {"specjax_attend", "specjax_gated_delta_commit", "specjax_quant_matmul"} <= targets["cpu"]


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", ["v5e", "v6e"])
@pytest.mark.parametrize("name", ["bundled", "4"])
def test_the_tpu_compiler_accepts_a_round(step: Any, name: str, generation: str) -> None:
    lowered = step.lowered_step(*program(step, name, "tpu"), "tpu", sharding=step.tpu_sharding(generation))
    calls = lowered.compile().as_text().count('custom_call_target="tpu_custom_call"')
    assert calls >= len(step.kernels_in(lowered)) > 0
