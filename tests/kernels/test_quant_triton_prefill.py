"""The Triton kernel for many rows multiplies with the decoded values, both factors rounded to bfloat16."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from compiled import dequantize, pack
from gpu_compiler import Assembled
from lowering import needs_jax_triton, needs_triton
from test_quant_gpu_prefill import rounded
from test_quant_pallas_gpu import OFF, activations, matrix, off_by, stack_of
from test_quant_pallas_lowering import DEEP, EXPERTS, SMALL, WIDE, arguments, product

from pallas_kernels.matmul import FORMATS, quant_matmul
from pallas_kernels.matmul.formats import tq_rotation, turned
from pallas_kernels.matmul.triton_prefill import Config, candidates, heuristic
from pallas_kernels.matmul.triton_prefill import quant_matmul as kernel

IMPL = "triton_prefill_interpret"
SHARED = 99 * 2**10
"""Bytes of shared memory that a program may have on GPUs of capability 8.6, 8.9 and 12.0."""


@needs_triton
@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_multiplied_with_the_values_in_bfloat16(name: str) -> None:
    blocks = matrix(name, 40)
    x, values = activations(33, blocks.width), dequantize(blocks)
    got = kernel(x, pack(blocks), "a16", config=Config(32, 64, 4, 2), interpret=True)
    if FORMATS[name].rotated:  # both factors are rounded in the other basis; the way there moves some over an edge
        x, values = (turned(each, tq_rotation().T) for each in (x, values))
    assert off_by(got, rounded(x), rounded(values)) <= (1e-4 if FORMATS[name].rotated else OFF)


@needs_triton
def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    weight, x = pack(matrix("Q8_0", 70)), activations(20, 512, broken=(1, 5))
    product = partial(kernel, act="a16", interpret=True)
    whole = product(x, weight, config=Config(32, 64, 4, 2))
    assert np.isnan(whole[1]).all()
    assert np.isfinite(whole[2:]).all()
    np.testing.assert_array_equal(product(x[:5], weight, config=Config(32, 64, 4, 2)), whole[:5])
    other = product(x[2:5], weight, config=Config(64, 128, 8, 3))  # numpy adds up in another order, tensor cores do not
    np.testing.assert_allclose(other, whole[2:5], rtol=1e-5, atol=1e-4)
    assert quant_matmul(x[:0], weight, impl=IMPL).shape == (0, 70)


@needs_triton
def test_blocks_of_rows_meet_the_matrices_that_an_index_names() -> None:
    stack = pack(stack_of([matrix("Q4_0", 40, seed) for seed in range(3)]))
    x = activations(4, 17, stack.width, broken=(2,))
    got = quant_matmul(x, stack, index=np.array([2, 0, -1, 7]), impl=IMPL)
    values = np.asarray(dequantize(stack))
    for block, number in ((0, 2), (1, 0), (3, 2)):
        assert off_by(got[block], rounded(x[block]), rounded(values[number])) <= OFF
    assert not np.any(got[2])


def test_tiles_are_large_where_that_leaves_work_for_the_whole_gpu() -> None:
    def tile(rows: int, n: int) -> tuple[int, int]:
        dims = {"M": rows, "N": n, "K": 5120, "format": "Q8_0"}
        config = heuristic(dims)
        assert config in candidates(dims)
        return config.rows, config.columns

    assert [tile(rows, 17408) for rows in (17, 64, 512, 4096)] == [(32, 128), (64, 128), (128, 128), (128, 128)]
    assert [tile(rows, 5120) for rows in (0, 17, 128, 4096)] == [(32, 64), (32, 64), (64, 64), (128, 128)]


@needs_jax_triton
@pytest.mark.parametrize(
    ("capability", "name", "shape", "rows"),
    [
        *((80, name, WIDE, 512) for name in ("Q8_0", "Q4_K", "Q6_K", "TQ3_1S")),
        (86, "Q4_K", DEEP, 64),
        (89, "Q5_1", SMALL, 17),
        (90, "IQ4_XS", EXPERTS, 64),
        (100, "Q4_K", WIDE, 512),
        (120, "Q6_K", DEEP, 4096),
    ],
)
def test_the_kernel_is_machine_code_with_its_sums_in_registers(
    capability: int, name: str, shape: tuple[int, ...], rows: int, triton_code: Callable[..., Assembled]
) -> None:
    assert triton_code(capability, product("triton_prefill"), *arguments(name, shape, rows)).shared <= SHARED
