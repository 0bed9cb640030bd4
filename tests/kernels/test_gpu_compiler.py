"""The Mosaic GPU kernels, at the sizes of real models, made machine code for Hopper: nothing is spilled from registers.

A process compiles for one kind of GPU only: other kinds have a process of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import test_cache_attention_lowering as of_rounds
import test_cache_attention_prefill as of_prompts
import test_causal_conv1d_lowering as convolutions
import test_gated_delta_lowering as gated_delta
import test_hadamard_lowering as hadamard
import test_quant_pallas_lowering as matmul
from gpu_compiler import compiled_for_gpu, without_mosaic_gpu_compiler

from pallas_kernels.kv_formats import FORMATS
from pallas_kernels.matmul import pallas_gpu
from pallas_kernels.matmul.config import FEW_ROWS, GpuConfig, programs_at_a_time
from pallas_kernels.matmul.formats import FORMATS as BLOCK_FORMATS
from pallas_kernels.mosaic_gpu import SHARED_MEMORY, WARPGROUP

pytestmark = [
    pytest.mark.gpu_compiler,
    pytest.mark.skipif(bool(without_mosaic_gpu_compiler()), reason=str(without_mosaic_gpu_compiler())),
]
Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the shapes of its arguments."""


def delta(name: str, n_tokens: int, shape: dict[str, int], dtype: Any, head_map: str = "tiled") -> Program:
    operation = {"few tokens": "prefill"}.get(name, name)
    impl = "pallas_gpu_prefill" if name == "prefill" else "pallas_gpu"
    run = partial(gated_delta.call, operation, impl, head_map)
    return run, gated_delta.arguments(operation, impl, n_tokens, **shape, dtype=dtype)


def product(name: str, shape: tuple[int, ...], rows: int) -> Program:
    impl = "pallas_gpu" if rows <= FEW_ROWS else "pallas_gpu_prefill"
    return matmul.product(impl), matmul.arguments(name, shape, rows)


def verification(kinds: tuple[str, str], rows: int, shape: dict[str, int], impl: str = "pallas_gpu") -> Program:
    return of_rounds.call(impl, kinds, rows, shape)


def prompt(kind: str, shape: dict[str, int]) -> Program:
    return of_prompts.call("pallas_gpu_prefill", kind, shape)


PROGRAMS: dict[str, Program] = {}
for name in ("prefill", "few tokens", "verify", "commit", "verify_snapshots"):
    PROGRAMS[f"{name} 27B"] = delta(name, 4, gated_delta.QWEN3_6_27B, jnp.bfloat16)
    PROGRAMS[f"{name} 27B, 16 tokens"] = delta(name, 16, gated_delta.QWEN3_6_27B, jnp.float32)
    PROGRAMS[f"{name} small"] = delta(name, 1, gated_delta.SMALL, jnp.float32, "grouped")
for sizes in convolutions.CASES:
    shapes = convolutions.shapes(*sizes)
    PROGRAMS[f"causal_conv1d {sizes[:3]}"] = convolutions.program("pallas_gpu"), shapes
for rows, width, dtype in hadamard.GROUPS:
    PROGRAMS[f"hadamard {width}"] = hadamard.rotation("pallas_gpu"), (jax.ShapeDtypeStruct((rows, width), dtype),)
for name in FORMATS:
    PROGRAMS[f"cache_attention {name}"] = verification((name, name), 4, of_rounds.QWEN3_6_27B)
PROGRAMS["cache_attention windowed"] = verification(("q4_0", "turbo3"), 16, of_rounds.WINDOWED)
PROGRAMS["cache_attention global"] = verification(("turbo4", "f32"), 1, of_rounds.GLOBAL)
for kinds, rows, shape in (
    (("bf16", "bf16"), 4, of_rounds.QWEN3_6_27B),
    (("q8_0", "q8_0"), 16, of_rounds.QWEN3_6_27B),
    (("turbo3", "q4_0"), 1, of_rounds.WINDOWED),
    (("f16", "f16"), 4, of_rounds.GLOBAL),
):
    program = verification(kinds, rows, shape, "pallas_gpu_splits")
    PROGRAMS[f"cache_attention_splits {kinds[0]}, {rows} rows"] = program
for kind in ("bf16", "f16", "q8_0"):
    PROGRAMS[f"cache_attention_prefill {kind}"] = prompt(kind, of_prompts.QWEN3_6_27B)
PROGRAMS["cache_attention_prefill windowed"] = prompt("bf16", of_prompts.WINDOWED)
PROGRAMS["cache_attention_prefill global"] = prompt("bf16", of_prompts.GLOBAL)
for name in BLOCK_FORMATS:
    for rows in (4, 512):
        PROGRAMS[f"quant_matmul {name}, {rows} rows"] = product(name, matmul.WIDE, rows)
GATED_DELTA_NET = [
    matmul.arguments(name, (n, 5120), 4)[1] for name, n in (("Q4_K", 10240), ("Q6_K", 6144), ("Q8_0", 48))
]
PROGRAMS["quant_matmul of several, Q4_K, Q6_K and Q8_0"] = (
    matmul.of_several,
    (jax.ShapeDtypeStruct((4, 5120), jnp.bfloat16), *GATED_DELTA_NET),
)
PROGRAMS["quant_matmul Q5_K, 16 rows"] = product("Q5_K", matmul.WIDE, 16)
for dtype in ("float32", "float16"):
    run, (_, wide) = product("Q4_K", matmul.WIDE, 4)
    PROGRAMS[f"quant_matmul Q4_K, {dtype}"] = run, (jax.ShapeDtypeStruct((4, matmul.WIDE[1]), dtype), wide)
PROGRAMS["quant_matmul Q4_K, tiles of 512 columns"] = (
    partial(pallas_gpu.quant_matmul, act="a16", config=GpuConfig(512, 7)),
    matmul.arguments("Q4_K", matmul.WIDE, 4),
)
PROGRAMS["quant_matmul experts"] = product("Q6_K", matmul.EXPERTS, 2)
PROGRAMS["quant_matmul experts, 64 rows"] = product("Q8_0", matmul.EXPERTS, 64)

CAPABILITY = int(os.environ.get("GPU_CAPABILITY", "90"))
WGMMA = re.compile(r"prefill|splits|quant_matmul .* (512|64) rows")
"""Kernels that multiply by wgmma, an instruction that Hopper has and no later GPU."""

REGISTERS = 65536
"""Of a multiprocessor."""
SPILLED = {
    "prefill 27B": 408,
    "prefill 27B, 16 tokens": 408,
    "cache_attention_prefill global": 152,
    "cache_attention_splits f16, 4 rows": 16,
}
"""Bytes of addresses that are spilled once and read back in each turn of a loop over whole tiles."""


@pytest.mark.parametrize("name", [name for name in PROGRAMS if CAPABILITY == 90 or not WGMMA.search(name)])
def test_kernels_keep_what_they_work_on_in_registers(name: str, tmp_path: Path) -> None:
    run, given = PROGRAMS[name]
    for code in compiled_for_gpu(run, tmp_path, *given, capability=CAPABILITY):
        assert code.target == f"sm_{CAPABILITY}a"
        assert code.shared <= SHARED_MEMORY
        assert code.spilled <= SPILLED.get(name, 0)


@pytest.mark.skipif(CAPABILITY != 90, reason="the numbers are those of Hopper")
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_multiprocessor_holds_as_many_products_as_the_splits_count_on(name: str, tmp_path: Path) -> None:
    run = partial(pallas_gpu.quant_matmul, act="a16", config=GpuConfig(256, 7))
    (code,) = compiled_for_gpu(run, tmp_path, *matmul.arguments(name, matmul.WIDE, 4))
    by_registers = REGISTERS // (WARPGROUP * (code.registers + -code.registers % 8))
    assert min(by_registers, SHARED_MEMORY // (code.shared + 2048)) == programs_at_a_time(name, 256)


@pytest.mark.parametrize("capability", ["100", "120"])
def test_kernels_without_wgmma_serve_blackwell_too(capability: str) -> None:
    check = test_kernels_keep_what_they_work_on_in_registers.__name__
    few = "27B or windowed or Q8_0 or Q4_K or causal_conv1d or hadamard"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu_compiler", "-p", "no:cacheprovider", __file__]
    ran = subprocess.run(
        [*command, "-k", f"{check} and ({few})"],
        env={**os.environ, "GPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert " skipped" not in ran.stdout
