"""The TPU kernel multiplies with the decoded values, whatever the block sizes, row by row alike."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from compiled import dequantize, pack
from test_quant_planes import matrix

from pallas_kernels.matmul import FORMATS, explain, from_blocks, quant_matmul
from pallas_kernels.matmul.config import TpuConfig, tpu_candidates, tpu_heuristic
from pallas_kernels.matmul.pallas_tpu import quant_matmul as kernel

OFF = 5e-7
"""Relative error of sums in float32; neither factor is rounded."""
IMPL = "pallas_tpu_interpret"
QUICK = ("Q4_K", "Q5_1", "Q6_K", "TQ3_1S")
"""Formats that have every kind of scale and plane between them, but for those that are tested with `slow`."""


def slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow)


def activations(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def product(x: jax.Array, values: jax.Array) -> np.ndarray:
    return np.asarray(x, np.float64) @ np.asarray(values, np.float64).T


def off_by(got: jax.Array, expected: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        # Blocks of many rows are the same program over more of them: each format of QUICK meets one or the other.
        *(("Q4_K", 3), ("Q4_K", 20), ("Q5_1", 20), ("Q6_K", 3), ("TQ3_1S", 20)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("Q5_1", 3), ("Q6_K", 20), ("TQ3_1S", 3))),
        *(
            pytest.param(name, rows, marks=pytest.mark.slow)
            for name in FORMATS
            if name not in QUICK
            for rows in (3, 20)
        ),
    ],
)
def test_few_rows_and_many_are_multiplied_with_the_values(name: str, rows: int) -> None:
    blocks = matrix(name)
    x = activations(rows, blocks.width)
    got = quant_matmul(x, pack(blocks), impl=IMPL)
    assert off_by(got, product(x, dequantize(blocks))) <= OFF


@pytest.mark.parametrize("name", ["Q8_0", slow("Q4_K")])
def test_a_row_depends_neither_on_the_rows_beside_it_nor_on_the_block_sizes(name: str) -> None:
    weight = pack(matrix(name, 200))
    x = activations(16, weight.width)
    x[1, 5] = np.nan
    whole = np.asarray(quant_matmul(x, weight, impl=IMPL))
    assert np.isnan(whole[1]).all()
    assert np.isfinite(whole[2:]).all()
    for rows in (1, 4):
        np.testing.assert_array_equal(quant_matmul(x[:rows], weight, impl=IMPL), whole[:rows])
    small = kernel(x, weight, "a16", config=TpuConfig(8, 128, 256), interpret=True)
    np.testing.assert_array_equal(small, whole)
    assert quant_matmul(x[:0], weight, impl=IMPL).shape == (0, 200)


@pytest.mark.parametrize("rows", [2, slow(17)])
def test_blocks_of_rows_meet_the_matrices_that_an_index_names(rows: int) -> None:
    stack = pack(from_blocks(np.stack([matrix("Q4_0", 40, seed).parts["blocks"] for seed in range(3)]), "Q4_0"))
    x = activations(5, rows, stack.width)
    x[3] = np.nan
    run = jax.jit(lambda x, w, i: quant_matmul(x, w, index=i, impl=IMPL))
    got, values = np.asarray(run(x, stack, np.array([2, 0, 0, -1, 7]))), np.asarray(dequantize(stack))
    for block, number in enumerate([2, 0, 0, None, 2]):
        if number is None:
            assert not np.any(got[block])
        else:
            assert off_by(got[block], product(x[block], values[number])) <= OFF


def test_large_and_small_activations_lose_nothing() -> None:
    blocks = matrix("Q8_0", 40)
    x = activations(2, blocks.width) * np.array([[1e30], [1e-25]], np.float32)
    got = np.asarray(quant_matmul(x, pack(blocks), impl=IMPL))
    for row in range(2):
        assert off_by(got[row], product(x[row], dequantize(blocks))) <= OFF


def test_what_does_not_fit_is_an_error() -> None:
    blocks = matrix("Q8_0")
    x = activations(2, blocks.width)
    with pytest.raises(ValueError, match="impl='pallas_tpu_interpret' does not fit: reads the layout 'planes'"):
        quant_matmul(x, blocks, impl=IMPL)
    with pytest.raises(ValueError, match="depth is 512; accepted: divisors of 768"):
        kernel(x, pack(blocks), "a16", config=TpuConfig(8, 128, 512), interpret=True)
    with pytest.raises(ValueError, match="columns is 100; accepted: multiples of 128"):
        TpuConfig(8, 100, 256)
    assert re.search("pallas_tpu +passed over: by name only", explain(x, pack(blocks)))


@pytest.mark.parametrize("name", FORMATS)
def test_there_are_block_sizes_for_all_shapes_of_models(name: str) -> None:
    for rows in (1, 16, 17, 4096):
        for n, k in ((17408, 5120), (5120, 17408), (2048, 11008), (151936, 2560), (40, 256)):
            dims = {"M": rows, "N": n, "K": k, "format": name}
            assert tpu_heuristic(dims) in tpu_candidates(dims)


@pytest.mark.parametrize(("rows", "block"), [(17, 32), (32, 32), (33, 64), (100, 128), (4096, 256)])
def test_blocks_have_no_more_rows_than_there_are(rows: int, block: int) -> None:
    """An expert is given 32 rows at a time: blocks of 256 would be zeros for the most part."""
    assert tpu_heuristic({"M": rows, "N": 2048, "K": 512, "format": "Q8_0"}).rows == block
