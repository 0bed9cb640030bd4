"""The kernels on planes become programs for their devices, at the sizes of real models, on a machine that has none."""

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

from pallas_kernels.matmul import (
    FORMATS,
    QTensor,
    from_blocks,
    pallas_tpu,
    quant_matmul,
    quant_matmuls,
    quant_swiglu,
    take_rows,
)
from pallas_kernels.matmul.config import tpu_candidates
from pallas_kernels.matmul.planes import pack

WIDE, DEEP, ODD, HEAD, SMALL = (17408, 5120), (5120, 17408), (2048, 11008), (151936, 2560), (40, 256)
EXPERTS = (128, 768, 2048)
TRITON_SHARED = 99 * 2**10 // 2
"""Bytes of shared memory that leave room for two programs on a multiprocessor of capability 8.6."""


def arguments(name: str, shape: tuple[int, ...], rows: int) -> tuple[Any, ...]:
    """Shapes of x, the matrix or stack in planes, and for a stack the numbers of eight blocks."""
    *stack, n, k = shape
    blocks = jax.ShapeDtypeStruct((*stack, n, FORMATS[name].row_bytes(k)), jnp.uint8)
    weight = jax.eval_shape(lambda blocks: pack(from_blocks(blocks, name)), blocks)
    if not stack:
        return jax.ShapeDtypeStruct((rows, k), jnp.bfloat16), weight
    return jax.ShapeDtypeStruct((8, rows, k), jnp.bfloat16), weight, jax.ShapeDtypeStruct((8,), jnp.int32)


def product(impl: str) -> Any:
    return lambda x, weight, index=None: quant_matmul(x, weight, index=index, impl=impl)


@pytest.mark.parametrize(("impl", "platform"), [("pallas_tpu", "tpu"), ("pallas_gpu", "cuda")])
@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [("Q8_0", WIDE, 4), ("Q4_K", DEEP, 16), ("Q6_K", EXPERTS, 2), ("Q5_1", SMALL, 1), ("IQ4_XS", HEAD, 8)],
)
def test_few_rows_lower(impl: str, platform: str, name: str, shape: tuple[int, ...], rows: int) -> None:
    module = lowered(product(impl), platform, *arguments(name, shape, rows))
    assert len(kernel_calls(module, platform)) == 1


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q5_K", "IQ4_XS"])
def test_numbers_are_divided_without_a_look_at_their_signs(name: str) -> None:
    """Each sign costs Mosaic GPU two starts of the assembler: lowering a model's kernels took 20 s instead of 4 s."""
    assert " sign " not in str(jax.make_jaxpr(product("pallas_gpu"))(*arguments(name, WIDE, 4)))


def of_several(x: Any, *weights: QTensor) -> list[jax.Array]:
    return quant_matmuls(x, weights, impl="pallas_gpu")


@pytest.mark.parametrize("name", ["Q8_0", pytest.param("Q4_K", marks=pytest.mark.slow)])
def test_products_with_one_x_are_one_launch(name: str) -> None:
    """A gated delta net of Qwen3.6-27B, and gate, up and down."""
    x = jax.ShapeDtypeStruct((4, 5120), jnp.bfloat16)
    weights = [arguments(name, (rows, 5120), 4)[1] for rows in (10240, 6144, 48, 48)]
    assert len(kernel_calls(lowered(of_several, "cuda", x, *weights), "cuda")) == 1
    mlp = [arguments(name, shape, 4)[1] for shape in (WIDE, WIDE, DEEP)]
    assert len(kernel_calls(lowered(partial(quant_swiglu, impl="pallas_gpu"), "cuda", x, *mlp), "cuda")) == 2


@pytest.mark.parametrize(("impl", "platform"), [("pallas_tpu", "tpu"), ("pallas_gpu_prefill", "cuda")])
@pytest.mark.parametrize(("name", "shape", "rows"), [("Q4_K", WIDE, 512), ("Q8_0", EXPERTS, 64)])
def test_many_rows_lower(impl: str, platform: str, name: str, shape: tuple[int, ...], rows: int) -> None:
    module = lowered(product(impl), platform, *arguments(name, shape, rows))
    assert len(kernel_calls(module, platform)) == 1


@needs_jax_triton
@pytest.mark.parametrize(
    ("capability", "name", "shape", "rows", "dtype"),
    [
        *((80, name, WIDE, 4, jnp.bfloat16) for name in FORMATS),
        (86, "Q4_K", DEEP, 16, jnp.float32),
        (89, "Q6_K", EXPERTS, 2, jnp.bfloat16),
        (86, "Q5_1", SMALL, 1, jnp.float16),
        (80, "Q8_0", HEAD, 8, jnp.bfloat16),
    ],
)
def test_the_triton_kernel_is_machine_code_with_its_sums_in_registers(
    capability: int,
    name: str,
    shape: tuple[int, ...],
    rows: int,
    dtype: Any,
    triton_code: Callable[..., Assembled],
) -> None:
    x, *others = arguments(name, shape, rows)
    code = triton_code(capability, product("triton"), jax.ShapeDtypeStruct(x.shape, dtype), *others)
    assert code.shared <= TRITON_SHARED


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        *((name, WIDE, 4) for name in FORMATS),
        *((name, shape, 16) for name in ("Q8_0", "Q4_K", "Q6_K") for shape in (DEEP, ODD, SMALL)),
        *((name, shape, 8) for name in ("Q8_0", "Q4_K") for shape in (HEAD, EXPERTS)),
        *((name, shape, 512) for name in ("Q8_0", "Q4_K", "Q6_K") for shape in (WIDE, DEEP, ODD, SMALL, EXPERTS)),
    ],
)
def test_the_tpu_compiler_accepts_the_kernel_and_copies_no_matrix(
    generation: str, name: str, shape: tuple[int, ...], rows: int
) -> None:
    memory = compiled_for_tpu(product("pallas_tpu"), generation, *arguments(name, shape, rows)).memory_analysis()
    activations = 8 * rows * (shape[-1] + shape[-2])
    assert memory.temp_size_in_bytes < 16 * activations + 2**20


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("name", "rows"), [("Q8_0", 4), ("Q4_K", 16), ("Q6_K", 512)])
def test_the_tpu_compiler_accepts_every_candidate(generation: str, name: str, rows: int) -> None:
    for config in tpu_candidates({"M": rows, "N": 512, "K": 2560, "format": name}):

        def run(x: Any, weight: Any, config: Any = config) -> jax.Array:
            return pallas_tpu.quant_matmul(x, weight, "a16", config=config)

        compiled_for_tpu(run, generation, *arguments(name, (512, 2560), rows))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", ["Q8_0", "Q6_K"])
@pytest.mark.parametrize("rows", [4, 512])
def test_rows_of_a_table_are_read_without_a_copy_of_it(generation: str, name: str, rows: int) -> None:
    _, table = arguments(name, HEAD, 1)
    numbers = jax.ShapeDtypeStruct((rows,), jnp.int32)
    memory = compiled_for_tpu(take_rows, generation, table, numbers).memory_analysis()
    assert memory.temp_size_in_bytes < 16 * rows * HEAD[-1] + 2**20
