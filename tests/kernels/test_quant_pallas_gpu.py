"""The GPU kernel multiplies few rows with the decoded values, row by row alike."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_quant_formats import random_blocks

from pallas_kernels.quant_matmul import FORMATS, QTensor, dequantize, from_blocks, quant_matmul
from pallas_kernels.quant_matmul.config import GpuConfig, gpu_candidates, gpu_heuristic
from pallas_kernels.quant_matmul.pallas_gpu import quant_matmul as kernel
from pallas_kernels.quant_matmul.planes import PLANE_FORMATS, pack

OFF = 5e-7
"""Relative error of sums in float32; neither factor is rounded."""
SMALL = GpuConfig(columns=128, splits=2, unroll=4)
QUICK = ("Q4_K",)


def matrix(name: str, rows: int = 150, seed: int = 0) -> QTensor:
    """Two chunks, and two tiles of columns, which overlap."""
    return from_blocks(jnp.asarray(random_blocks(name, rows, 512 // FORMATS[name].values, seed)), name)


def activations(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def off_by(got: Any, x: Any, values: Any) -> float:
    expected = np.asarray(x, np.float64) @ np.asarray(values, np.float64).T
    return float(np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PLANE_FORMATS]
)
def test_rows_are_multiplied_with_the_values_and_do_not_see_each_other(name: str) -> None:
    blocks = matrix(name)
    weight, x = pack(blocks), activations(2, blocks.width)
    got = kernel(x, weight, "a16", config=SMALL, interpret=True)
    assert off_by(got, x, dequantize(blocks)) <= OFF
    np.testing.assert_array_equal(kernel(x[:1], weight, "a16", config=SMALL, interpret=True), got[:1])


@pytest.mark.slow
def test_a_row_is_alike_in_a_call_of_any_size() -> None:
    weight, x = pack(matrix("Q8_0")), activations(16, 512).at[1, 5].set(jnp.nan)
    whole = quant_matmul(x, weight, impl="pallas_gpu_interpret")
    assert np.isnan(whole[1]).all()
    assert np.isfinite(whole[2:]).all()
    for rows in (1, 4):
        np.testing.assert_array_equal(quant_matmul(x[:rows], weight, impl="pallas_gpu_interpret"), whole[:rows])
    assert quant_matmul(x[:0], weight, impl="pallas_gpu_interpret").shape == (0, 150)


def test_blocks_of_rows_meet_the_matrices_that_an_index_names() -> None:
    stack = pack(from_blocks(jnp.stack([matrix("Q4_0", 40, seed).parts["blocks"] for seed in range(3)]), "Q4_0"))
    x = activations(4, 1, stack.width).at[2].set(jnp.nan)
    got = kernel(x, stack, "a16", jnp.array([2, 0, -1, 7]), config=SMALL, interpret=True)
    values = dequantize(stack)
    for block, number in ((0, 2), (1, 0), (3, 2)):
        assert off_by(got[block], x[block], values[number]) <= OFF
    assert not np.any(got[2])


def test_what_does_not_fit_is_an_error() -> None:
    weight = pack(matrix("Q8_0"))
    with pytest.raises(ValueError, match="'pallas_gpu' does not fit: M=17 is over 16"):
        quant_matmul(activations(17, 512), weight, impl="pallas_gpu")
    with pytest.raises(ValueError, match="accepted: splits that divide 2, at most 256 columns"):
        kernel(activations(2, 512), weight, "a16", config=GpuConfig(128, 3, 4), interpret=True)
    with pytest.raises(ValueError, match="columns is 100; accepted: 128, 256, 512"):
        GpuConfig(100, 1, 4)


def test_there_are_block_sizes_for_all_shapes_of_models() -> None:
    for n, k in ((17408, 5120), (5120, 17408), (2048, 11008), (151936, 2560), (40, 256)):
        dims = {"N": n, "K": k, "format": "Q8_0"}
        assert gpu_heuristic(dims) in gpu_candidates(dims)
