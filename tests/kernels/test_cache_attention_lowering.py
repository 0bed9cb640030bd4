"""The Pallas attention kernels become programs for their devices on a machine that has none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from gpu_compiler import Assembled
from lowering import (
    GENERATIONS,
    compiled_for_tpu,
    kernel_calls,
    lowered,
    needs_jax_triton,
)

from pallas_kernels import cache_attention
from pallas_kernels.kv_formats import FORMATS, KVStore

QWEN3_6_27B = {"heads": 24, "kv_heads": 4, "width": 256, "slots": 4096}
# Widths and window of Gemma 4; its caches of windowed layers are rings with room for a call.
WINDOWED = {"heads": 16, "kv_heads": 8, "width": 256, "slots": 1040, "window": 1024}
GLOBAL = {"heads": 16, "kv_heads": 2, "width": 512, "slots": 2048}
SMALL = {"heads": 6, "kv_heads": 3, "width": 24, "slots": 40, "window": 30}
PART = {"heads": 6, "kv_heads": 1, "width": 256, "slots": 4096}  # of Qwen3.6-27B on four devices
ONE_GROUP = {"heads": 2, "kv_heads": 1, "width": 128, "slots": 64}


def arguments(kinds: tuple[str, str], rows: int, heads: int, kv_heads: int, width: int, slots: int) -> tuple[Any, ...]:
    """Shapes of q, k, v and positions of two sequences."""
    k, v = (jax.eval_shape(partial(KVStore.zeros, (2, slots, kv_heads, width), kind)) for kind in kinds)
    q = jax.ShapeDtypeStruct((2, rows, heads, width), jnp.bfloat16)
    return q, k, v, jax.ShapeDtypeStruct((2, rows), jnp.int32)


def call(impl: str, kinds: tuple[str, str], rows: int, shape: dict[str, int]) -> tuple[Any, tuple[Any, ...]]:
    """A function and the shapes of its arguments."""
    sizes = {name: size for name, size in shape.items() if name != "window"}
    options: dict[str, Any] = {"soft_cap": 50.0, "sinks": jnp.zeros(shape["heads"])} if shape is SMALL else {}
    run = partial(cache_attention.attend, scale=0.1, window=shape.get("window"), impl=impl, **options)
    return run, arguments(kinds, rows, **sizes)


@pytest.mark.parametrize(
    ("kinds", "rows", "shape"),
    [
        (("bf16", "q8_0"), 4, QWEN3_6_27B),
        (("q4_0", "turbo3"), 16, WINDOWED),
        (("turbo4", "f32"), 1, GLOBAL),
        (("f16", "turbo2"), 3, SMALL),
    ],
)
def test_the_tpu_kernel_lowers(kinds: tuple[str, str], rows: int, shape: dict[str, int]) -> None:
    run, given = call("pallas_tpu", kinds, rows, shape)
    assert len(kernel_calls(lowered(run, "tpu", *given), "tpu")) == 1


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("name", "rows", "shape"),
    [(name, 4, QWEN3_6_27B) for name in FORMATS]
    + [(name, 3, SMALL) for name in FORMATS]
    + [(name, 4, PART) for name in ("bf16", "turbo3")]
    + [("bf16", 16, QWEN3_6_27B), ("turbo3", 4, WINDOWED), ("q8_0", 4, GLOBAL)],
)
def test_the_tpu_compiler_accepts_the_kernel_and_copies_no_codes(
    name: str, rows: int, shape: dict[str, int], generation: str
) -> None:
    run, given = call("pallas_tpu", (name, name), rows, shape)
    memory = compiled_for_tpu(run, generation, *given).memory_analysis()
    codes = given[1].parts["codes"]
    if name != "f16" and shape is not SMALL:
        assert memory.temp_size_in_bytes < codes.size * codes.dtype.itemsize


@pytest.mark.parametrize(
    ("impl", "kinds", "rows", "shape"),
    [
        ("pallas_gpu", ("bf16", "q8_0"), 4, QWEN3_6_27B),
        ("pallas_gpu", ("turbo2", "turbo3"), 1, ONE_GROUP),
        ("pallas_gpu", ("q4_0", "turbo4"), 1, ONE_GROUP),
        ("pallas_gpu", ("f16", "f32"), 1, GLOBAL),
        ("pallas_gpu_splits", ("bf16", "q8_0"), 16, QWEN3_6_27B),
        ("pallas_gpu_splits", ("f16", "turbo4"), 1, GLOBAL),
    ],
)
def test_the_gpu_kernels_lower(impl: str, kinds: tuple[str, str], rows: int, shape: dict[str, int]) -> None:
    run, given = call(impl, kinds, rows, shape)
    assert len(kernel_calls(lowered(run, "cuda", *given), "cuda")) == 1


@needs_jax_triton
@pytest.mark.parametrize(
    ("capability", "kinds", "rows", "shape"),
    [
        *((80, (name, name), 4, QWEN3_6_27B) for name in FORMATS),
        *((86, (name, name), 4, GLOBAL) for name in FORMATS),
        (89, ("q4_0", "turbo3"), 16, WINDOWED),
        (80, ("f16", "turbo2"), 3, SMALL),
        (86, ("bf16", "q8_0"), 1, ONE_GROUP),
    ],
)
def test_the_triton_kernel_is_machine_code_with_its_sums_in_registers(
    capability: int,
    kinds: tuple[str, str],
    rows: int,
    shape: dict[str, int],
    triton_code: Callable[..., Assembled],
) -> None:
    run, given = call("triton", kinds, rows, shape)
    code = triton_code(capability, run, *given)
    assert code.shared <= 99 * 2**10 // 2, "two programs on a multiprocessor of capability 8.6"


@needs_jax_triton
@pytest.mark.parametrize(
    ("capability", "kinds", "shape"),
    [
        *((80, (name, name), QWEN3_6_27B) for name in FORMATS),
        (86, ("bf16", "bf16"), GLOBAL),
        (89, ("q8_0", "turbo4"), WINDOWED),
        (90, ("f16", "q4_0"), SMALL),
        (100, ("bf16", "bf16"), QWEN3_6_27B),
        (120, ("q8_0", "q8_0"), QWEN3_6_27B),
    ],
)
def test_the_triton_kernel_of_prompts_is_machine_code_with_its_sums_in_registers(
    capability: int, kinds: tuple[str, str], shape: dict[str, int], triton_code: Callable[..., Assembled]
) -> None:
    run, given = call("triton_prefill", kinds, 512, shape)
    assert triton_code(capability, run, *given).shared <= 99 * 2**10, "what a program has on GPUs of capability 8.6"
