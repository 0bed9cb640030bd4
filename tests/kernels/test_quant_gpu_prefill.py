"""The GPU kernel for many rows multiplies with the decoded values, both factors rounded to bfloat16."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, pack
from lowering import kernel_calls, lowered
from test_quant_pallas_gpu import activations, as_multiplied, matrix, off_by, stack_of
from test_quant_pallas_lowering import ODD, SMALL, arguments

from pallas_kernels import mosaic_gpu, using
from pallas_kernels.matmul import FORMATS, explain, quant_matmul
from pallas_kernels.matmul.config import FEW_ROWS
from pallas_kernels.matmul.formats import tq_rotation, turned
from pallas_kernels.matmul.implementations import QUANT_MATMUL
from pallas_kernels.matmul.pallas_gpu_prefill import Config, candidates, heuristic
from pallas_kernels.matmul.pallas_gpu_prefill import quant_matmul as kernel

OFF, ROUNDED = 5e-7, 4e-3
"""Relative errors: of sums in float32; of sums of products of rounded factors."""
QUICK = ("Q4_K", "Q5_1", "Q6_K", "TQ3_1S")
"""Formats that have every kind of scale and plane between them, but for those that are tested with `slow`."""


def rounded(x: Any) -> np.ndarray:
    return np.asarray(x).astype(jnp.bfloat16).astype(np.float32)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS]
)
def test_rows_are_multiplied_with_the_values_in_bfloat16(name: str) -> None:
    blocks = matrix(name, 40)
    x, values = activations(70, blocks.width), dequantize(blocks)
    got = kernel(x, pack(blocks), "a16", config=Config(2, 64), interpret=True)
    assert off_by(got, x, values) <= ROUNDED
    if FORMATS[name].rotated:  # both factors are rounded in the other basis; the way there moves some over an edge
        x, values = (turned(each, tq_rotation().T) for each in (x, values))
    assert off_by(got, rounded(x), rounded(values)) <= (1e-4 if FORMATS[name].rotated else OFF)


def test_a_row_depends_neither_on_the_rows_beside_it_nor_on_the_tile() -> None:
    weight, x = pack(matrix("Q8_0", 40)), activations(20, 512, broken=(1, 5))
    whole = np.asarray(kernel(x, weight, "a16", config=Config(1, 128), interpret=True))
    assert np.isnan(whole[1]).all()
    assert np.isfinite(whole[2:]).all()
    np.testing.assert_array_equal(kernel(x[:5], weight, "a16", config=Config(2, 64), interpret=True), whole[:5])


@pytest.mark.parametrize("impl", ["pallas_gpu_prefill_interpret", "xla_decoded"])
def test_blocks_of_rows_meet_the_matrices_that_an_index_names(impl: str) -> None:
    stack = pack(stack_of([matrix("Q4_0", 40, seed) for seed in range(3)]))
    x = activations(4, FEW_ROWS + 1, stack.width, broken=(2,))
    got = np.asarray(jax.jit(partial(quant_matmul, impl=impl))(x, stack, index=np.array([2, 0, -1, 7])))
    values = np.asarray(dequantize(stack))
    for block, number in ((0, 2), (1, 0), (3, 2)):
        assert off_by(got[block], rounded(x[block]), rounded(values[number])) <= OFF
    assert not np.any(got[2])


def test_the_warpgroups_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    monkeypatch.setattr(mosaic_gpu, "interpreter", lambda: InterpretGPUParams(detect_races=True))
    blocks = matrix("Q4_0", 40, width=1024)  # each buffer many times
    x = activations(20, blocks.width)
    got = kernel(x, pack(blocks), "a16", config=Config(2, 64), interpret=True)
    assert off_by(got, rounded(x), rounded(dequantize(blocks))) <= OFF
    assert not gpu_callbacks.get_races().races_found


def test_few_rows_stay_more_exact_than_many() -> None:
    blocks = matrix("Q4_0", 40)
    weight, x = pack(blocks), activations(FEW_ROWS, blocks.width)
    few = quant_matmul(x[:2], weight, impl="pallas_gpu_interpret")
    assert off_by(few, as_multiplied(x[:2], "pallas_gpu", "Q4_0"), dequantize(blocks)) <= OFF
    many = quant_matmul(x[:2], weight, impl="pallas_gpu_prefill_interpret")
    assert OFF < off_by(many, x[:2], dequantize(blocks)) <= ROUNDED
    assert quant_matmul(x[:0], weight, impl="pallas_gpu_prefill_interpret").shape == (0, 40)


def test_what_does_not_fit_is_an_error() -> None:
    blocks, x = matrix("Q8_0"), activations(17, 512)
    with pytest.raises(ValueError, match="'pallas_gpu_prefill' does not fit: reads the layout 'planes', see `prepare`"):
        quant_matmul(x, blocks, impl="pallas_gpu_prefill")
    with pytest.raises(ValueError, match="rows is 32; accepted: 64, 128"):
        Config(1, 32)
    with pytest.raises(ValueError, match="warpgroups is 3; accepted: 1, 2"):
        Config(3, 64)
    assert re.search("pallas_gpu_prefill +passed over: by name only", explain(x, pack(blocks), platform="gpu"))
    with using("matmul.packed=pallas_gpu+pallas_gpu_prefill"):
        said = explain(x, pack(blocks), platform="gpu")
    assert re.search(r"pallas_gpu_prefill +chosen \(using", said)
    stack = {"M": 64, "N": 512, "K": 512, "format": "Q8_0", "layout": "planes", "E": 8}
    for implementation in QUANT_MATMUL.implementations:
        if implementation.name in ("pallas_gpu_prefill_interpret", "triton_prefill"):
            assert implementation.unfit({**stack, "B": 65536}) == "B=65536 is over 65535"


def test_tiles_are_tall_where_that_leaves_work_for_the_whole_gpu() -> None:
    def tile(rows: int, n: int) -> int:
        dims = {"M": rows, "N": n, "K": 5120, "format": "Q8_0"}
        config = heuristic(dims)
        assert config in candidates(dims)
        return config.tile

    assert [tile(rows, 17408) for rows in (17, 64, 65, 512, 4096)] == [64, 64, 128, 256, 256]
    assert [tile(rows, 5120) for rows in (17, 128, 512, 4096)] == [64, 64, 128, 256]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_lowers_for_cuda(name: str) -> None:
    def product(x: jax.Array, weight: Any) -> jax.Array:
        return quant_matmul(x, weight, impl="pallas_gpu_prefill")

    assert len(kernel_calls(lowered(product, "cuda", *arguments(name, ODD, 20)), "cuda")) == 1


@pytest.mark.parametrize("config", candidates({}))
def test_every_tile_lowers(config: Config) -> None:
    def product(x: jax.Array, weight: Any) -> jax.Array:
        return kernel(x, weight, "a16", config=config)

    assert len(kernel_calls(lowered(product, "cuda", *arguments("Q4_0", SMALL, 300)), "cuda")) == 1
