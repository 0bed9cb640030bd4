"""The kernels on planes become programs for their devices, at the sizes of real models, on a machine that has none."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from pallas_kernels.quant_matmul import FORMATS, from_blocks, quant_matmul
from pallas_kernels.quant_matmul.planes import PLANE_FORMATS, pack

WIDE, DEEP, ODD, HEAD, SMALL = (17408, 5120), (5120, 17408), (2048, 11008), (151936, 2560), (40, 256)
EXPERTS = (128, 768, 2048)


def arguments(name: str, shape: tuple[int, ...], rows: int, dtype: Any = jnp.bfloat16) -> tuple[Any, ...]:
    """Shapes of x, the matrix or stack in planes, and for a stack the numbers of eight blocks."""
    *stack, n, k = shape
    blocks = jax.ShapeDtypeStruct((*stack, n, FORMATS[name].row_bytes(k)), jnp.uint8)
    weight = jax.eval_shape(lambda blocks: pack(from_blocks(blocks, name)), blocks)
    if not stack:
        return jax.ShapeDtypeStruct((rows, k), dtype), weight
    return jax.ShapeDtypeStruct((8, rows, k), dtype), weight, jax.ShapeDtypeStruct((8,), jnp.int32)


def program(impl: str) -> Any:
    return jax.jit(lambda x, weight, index=None: quant_matmul(x, weight, index=index, impl=impl))


@pytest.mark.parametrize(
    ("impl", "platform", "target"), [("pallas_tpu", "tpu", "tpu_custom_call"), ("pallas_gpu", "cuda", "mosaic_gpu_v2")]
)
@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [("Q8_0", WIDE, 4), ("Q4_K", DEEP, 16), ("Q6_K", EXPERTS, 2), ("Q5_1", SMALL, 1), ("IQ4_XS", HEAD, 8)],
)
def test_few_rows_lower(impl: str, platform: str, target: str, name: str, shape: tuple[int, ...], rows: int) -> None:
    exported = export.export(program(impl), platforms=[platform])(*arguments(name, shape, rows))
    assert exported.mlir_module().count(f"@{target}") == 1


@pytest.mark.parametrize(("name", "shape", "rows"), [("Q4_K", WIDE, 512), ("Q8_0", EXPERTS, 64)])
def test_many_rows_lower_for_tpu(name: str, shape: tuple[int, ...], rows: int) -> None:
    exported = export.export(program("pallas_tpu"), platforms=["tpu"])(*arguments(name, shape, rows))
    assert exported.mlir_module().count("@tpu_custom_call") == 1


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        *((name, WIDE, 4) for name in PLANE_FORMATS),
        *((name, shape, 16) for name in ("Q8_0", "Q4_K", "Q6_K") for shape in (DEEP, ODD, SMALL)),
        *((name, shape, 8) for name in ("Q8_0", "Q4_K") for shape in (HEAD, EXPERTS)),
        *((name, shape, 512) for name in ("Q8_0", "Q4_K", "Q6_K") for shape in (WIDE, DEEP, ODD, SMALL, EXPERTS)),
    ],
)
def test_the_tpu_compiler_accepts_the_kernel_and_copies_no_matrix(
    chip: str, name: str, shape: tuple[int, ...], rows: int
) -> None:
    """Lowering alone accepts programs that Mosaic then rejects (needs the package libtpu)."""
    pytest.importorskip("libtpu")
    device = topologies.get_topology_desc(f"{chip}:2x2", platform="tpu").devices[0]
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(device)),
        arguments(name, shape, rows),
    )
    memory = program("pallas_tpu").lower(*given).compile().memory_analysis()
    activations = 8 * rows * (shape[-1] + shape[-2])  # float32 and padded
    assert memory.temp_size_in_bytes < 16 * activations + 2**20
