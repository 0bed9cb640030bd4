"""Whole rounds become programs for other machines: with the kernels of those machines, and none of this one's."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import pytest
from short_model import short_model

import specjax
from benchmarks import programs
from benchmarks.released_models import opened, shape_of_27b
from pallas_kernels import native
from specjax.models.qwen3_5 import parameter_shapes
from specjax.runtime.loading import open_models
from specjax.runtime.outline import outline
from specjax.state import KVTypes

KERNELS = {"causal_conv1d", "gated_delta_commit", "gated_delta_verify", "quant_matmul", "cache_attention"}
PLATFORMS = ("tpu", "gpu")
NATIVE = "specjax_"
"""How the names of native kernels begin."""
SIZES = {"batch": 1, "slots": 4096}


def outlined(name: str, platform: str, **settings: Any) -> Any:
    """A model by name, "bundled", "short" or a number of layers of Qwen3.6-27B, by shapes."""
    named = {"bundled": lambda: open_models(None, None), "short": short_model}
    models = named[name]() if name in named else opened(shape_of_27b(int(name)), "Q4_K")
    return programs.Outlined.of(models, platform, dtype="float32", **settings)


@cache
def bundled() -> specjax.Model:
    return specjax.load()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "name", ["short", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bundled", "4", "64"))]
)
def test_rounds_lower_with_the_kernels_of_their_platform(name: str, platform: str) -> None:
    lowered = outlined(name, platform).rounds(**SIZES)
    assert set(programs.kernels_in(lowered)) == KERNELS
    assert not [target for target, _ in programs.custom_calls(lowered) if target.startswith(NATIVE)]


@pytest.mark.parametrize(
    ("platform", "products", "attention"),
    [("tpu", "quant_matmul", "cache_attention"), ("gpu", "quant_matmul_prefill", "cache_attention_prefill")],
)
def test_prompts_lower_with_the_kernels_of_their_platform(platform: str, products: str, attention: str) -> None:
    """More rows than kernels for verification take."""
    model = outlined("short", platform, kv_types=KVTypes("f16", "f16"))
    lowered = model.feeding(1, 256, columns=1, tokens=64)
    assert {"causal_conv1d", "gated_delta_prefill", products, attention} <= set(programs.kernels_in(lowered))
    assert not [target for target, _ in programs.custom_calls(lowered) if target.startswith(NATIVE)]


def test_the_released_shape_has_as_many_parameters_as_the_released_model() -> None:
    leaves = jax.tree.leaves(parameter_shapes(shape_of_27b(64))["target"])
    assert sum(math.prod(leaf.shape) for leaf in leaves) / 1e9 == pytest.approx(26.9, rel=0.001)


def test_the_shapes_are_those_of_a_model_that_is_loaded() -> None:
    loaded = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), bundled().params)
    assert outline().params == loaded


def test_choices_follow_the_platform_and_not_the_machine() -> None:
    """Without kernels that are named: a program for a TPU calls nothing that only this machine has."""
    targets = {}
    for platform in ("cpu", "tpu"):
        model = outlined("short", platform, kernels="auto")
        targets[platform] = {target for target, _ in programs.custom_calls(model.rounds(**SIZES))}
    assert not [target for target in targets["tpu"] if target.startswith((NATIVE, *programs.KERNEL_CALLS))]
    if native.available():
        assert {"specjax_attend", "specjax_gated_delta_commit", "specjax_quant_matmul"} <= targets["cpu"]


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", ["v5e", "v6e"])
@pytest.mark.parametrize("name", ["bundled", "4"])
def test_the_tpu_compiler_accepts_a_round(name: str, generation: str) -> None:
    (device,) = programs.tpu_devices(generation)
    lowered = outlined(name, "tpu", device=device).rounds(**SIZES)
    calls = lowered.compile().as_text().count('custom_call_target="tpu_custom_call"')
    assert calls >= len(programs.kernels_in(lowered)) > 0
