"""Programs of several devices are made for machines that are not at hand: lowered for GPUs, compiled for TPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.programs import KERNEL_CALLS, Outlined, absent_mesh, custom_calls, kernels_in, operations
from benchmarks.released_models import GEMMA4_31B, QWEN36_35B_A3B, opened, shape_of_27b
from pallas_kernels import using
from specjax.analysis.memory.liveness import peak_bytes
from specjax.analysis.memory.plan import COPIES
from specjax.mesh.plan import without_devices
from specjax.models.gemma4 import interleaved_layer_types
from specjax.models.qwen3_5 import MoEConfig, hybrid_layer_types
from specjax.runtime.programs import Programs
from specjax.state import KVTypes

WIDTHS = {"vocab_size": 8192}
MODELS: dict[str, tuple[Any, str]] = {
    "hybrid": (replace(shape_of_27b(4), **WIDTHS), "Q8_0"),
    "experts": (
        replace(QWEN36_35B_A3B, layer_types=hybrid_layer_types(4), moe=MoEConfig(16, 8, 512, 512), **WIDTHS),
        "Q8_0",
    ),
    "dense": (replace(GEMMA4_31B, layer_types=interleaved_layer_types(6), **WIDTHS), "BF16"),
}
"""The first layers of released models, with fewer tokens and experts."""
BATCH, SLOTS = 4, 1024


def model_on(mesh: Any, name: str, platform: str, kernels: str | None = None) -> Outlined:
    config, kind = MODELS[name]
    drafts = 3 if config.mtp_layers else 0
    types = KVTypes("bf16", "bf16")
    return Outlined.of(
        opened(config, kind), platform, mesh=mesh, kernels=kernels, kv_types=types, max_drafts=drafts, rule="greedy"
    )


def count(lowered: Any, name: str) -> int:
    module = lowered.compiler_ir("stablehlo").operation
    return sum(each.name == f"stablehlo.{name}" for each in operations(module))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hybrid", "experts", "dense"])
def test_rounds_of_a_split_model_lower_for_gpus(name: str) -> None:
    """With the kernels that one GPU has, and no collective but those that layers ask for."""
    model = model_on(without_devices((1, 4)), name, "gpu")
    lowered = model.rounds(BATCH, SLOTS)
    kernels = {"hybrid": {"quant_matmul", "gated_delta_verify"}, "experts": {"quant_matmul"}, "dense": set()}[name]
    assert kernels | {"cache_attention"} <= set(kernels_in(lowered))
    assert 0 < count(lowered, "all_reduce") <= 2 * model.decoder.target.config.num_layers + 2 + 2 * 3 + 2 * 2 + 1
    assert not count(lowered, "all_to_all") + count(lowered, "collective_permute")
    assert not [target for target, _ in custom_calls(lowered) if target.startswith("specjax_")]


SLICES = [("v5e", (1, 4)), ("v5e", (2, 4)), ("v6e", (2, 2))]


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("kernels", [None, "xla"], ids=["pallas", "xla"])
@pytest.mark.parametrize(("generation", "sizes"), SLICES, ids=lambda each: str(each))
@pytest.mark.parametrize("name", MODELS)
def test_the_tpu_compiler_accepts_rounds_on_a_mesh(
    name: str, generation: str, sizes: tuple[int, int], kernels: str | None
) -> None:
    lowered = model_on(absent_mesh(generation, *sizes), name, "tpu", kernels).rounds(BATCH, SLOTS)
    text = lowered.compile().as_text()
    assert re.search(r" all-reduce(-start)?\(", text)
    assert not re.search(r" all-to-all(-start)?\(", text)
    calls = [call for call in KERNEL_CALLS if f'custom_call_target="{call}"' in text]
    assert bool(calls) == (kernels is None)


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("columns", [1, BATCH])
@pytest.mark.parametrize("name", MODELS)
def test_the_tpu_compiler_accepts_prompts_on_a_mesh(name: str, columns: int) -> None:
    model_on(absent_mesh("v5e", 2, 2), name, "tpu").feeding(BATCH, SLOTS, columns=columns).compile()


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("name", "columns"), [("hybrid", 0), ("hybrid", 16), ("experts", 0), ("experts", 4)])
def test_the_estimate_of_temporaries_is_not_below_what_the_tpu_compiler_takes(name: str, columns: int) -> None:
    """Of rounds (0 columns) and of pieces of prompts. Caches are so large that a copy of one would be seen."""
    batch, slots = 16, 16384
    model = model_on(absent_mesh("v5e", 1, 4), name, "tpu")
    with using(model.kernels, platform="tpu"):
        programs = Programs(model.decoder, model.params, model.mesh)
        state = programs.state(batch, slots)
        traced = programs.feeding(state, batch, columns=columns) if columns else programs.rounds(state)
        estimate = COPIES["tpu"] * peak_bytes(traced.jaxpr.jaxpr)
        taken = traced.lower(lowering_platforms=("tpu",)).compile().memory_analysis().temp_size_in_bytes
    assert taken < estimate
    assert not columns or taken > estimate / 6, "the little that a round needs may all be in the TPU's own fast memory"
