"""The kernels of the Walsh-Hadamard transform become programs for their devices on a machine that has none."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from gpu_compiler import Assembled
from lowering import GENERATIONS, compiled_for_tpu, kernel_calls, lowered, needs_jax_triton

from pallas_kernels.hadamard import pallas_tpu, walsh_hadamard

GROUPS = ((8192, 128, jnp.float32), (7, 64, jnp.bfloat16), (40, 512, jnp.float32))
"""Rows, width and dtype: the groups of a prefill, of few rows with narrow heads, and wide vectors."""


def rotation(impl: str):
    """As caches rotate: with signs on both sides."""

    def rotate(x: jax.Array) -> jax.Array:
        signs = jnp.ones(x.shape[-1])
        return walsh_hadamard(x, before=signs, after=signs, impl=impl)

    return rotate


@pytest.mark.parametrize(("impl", "platform"), [("pallas_tpu", "tpu"), ("pallas_gpu", "cuda")])
@pytest.mark.parametrize(("rows", "width", "dtype"), GROUPS)
def test_the_kernel_lowers(impl: str, platform: str, rows: int, width: int, dtype: jnp.dtype) -> None:
    module = lowered(rotation(impl), platform, jax.ShapeDtypeStruct((rows, width), dtype))
    assert len(kernel_calls(module, platform)) == 1


@needs_jax_triton
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize(("rows", "width", "dtype"), [*GROUPS, (64, 2048, jnp.bfloat16)])
def test_the_triton_kernel_is_machine_code_with_its_vectors_in_registers(
    capability: int, rows: int, width: int, dtype: jnp.dtype, triton_code: Callable[..., Assembled]
) -> None:
    triton_code(capability, rotation("triton"), jax.ShapeDtypeStruct((rows, width), dtype))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("rows", "width", "dtype"), [*GROUPS, (3, 128, jnp.float16), (5, 1, jnp.float32)])
def test_the_tpu_compiler_accepts_the_kernel(generation: str, rows: int, width: int, dtype: jnp.dtype) -> None:
    compiled_for_tpu(rotation("pallas_tpu"), generation, jax.ShapeDtypeStruct((rows, width), dtype))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("width", [128, pallas_tpu.MAX_WIDTH])
def test_the_tpu_compiler_accepts_every_candidate(generation: str, width: int) -> None:
    for config in pallas_tpu.candidates({"N": width, "rows": 8192}):

        def transform(x: jax.Array, config: pallas_tpu.Config = config) -> jax.Array:
            return pallas_tpu.transform(x, None, None, config=config)

        compiled_for_tpu(transform, generation, jax.ShapeDtypeStruct((8192, width), jnp.float32))
