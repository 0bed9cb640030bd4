"""Planes hold what blocks hold, and every reading of them gives the same values."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, pack
from test_quant_formats import random_blocks

from pallas_kernels import matmul, using
from pallas_kernels.elementwise import float_of_half
from pallas_kernels.matmul import FORMATS, QTensor, from_blocks, layouts, planes, quant_matmul
from pallas_kernels.matmul.planes import take_from_tiles

N = 37
BITS = {
    "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0,
    "Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625, "IQ4_NL": 4.5, "IQ4_XS": 4.3125, "TQ3_1S": 4.0, "TQ4_1S": 5.0,
}  # fmt: skip
"""Per value, scales included."""


def matrix(name: str, rows: int = N, seed: int = 0) -> QTensor:
    """Three chunks, the last one not full where blocks are shorter than chunks."""
    return from_blocks(random_blocks(name, rows, -(-672 // FORMATS[name].values), seed), name)


@jax.jit
def packed_and_read(stack: QTensor, rows: jax.Array) -> tuple[Any, ...]:
    """Of a stack: it as planes, some rows of its second matrix, and a part of that; one program compiles faster."""
    packed = planes.pack(stack)
    kept = matmul.submatrix(packed[1], rows[0])
    expected = planes.pack(matmul.submatrix(stack[1], rows[0]))
    return packed, matmul.take_rows(packed[1], rows), kept, expected


@jax.jit
def read(*weights: QTensor) -> list[jax.Array]:
    return [matmul.dequantize(each) for each in weights]


@pytest.mark.parametrize("name", FORMATS)
def test_planes_hold_the_values_of_blocks(name: str) -> None:
    stack = from_blocks(np.stack([matrix(name, N, seed).parts["blocks"] for seed in range(2)]), name)
    rows = np.array([[0, 17, 36], [15, 99, 16]])
    packed, taken, kept, part = packed_and_read(stack, rows)
    assert packed.shape == stack.shape
    assert (kept.shape, kept.layout) == ((3, packed.width), "planes")
    got, expected, got_of_kept = map(np.asarray, read(packed, stack, kept))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(taken, expected[1][np.minimum(rows, N - 1)])
    np.testing.assert_array_equal(got_of_kept, expected[1][rows[0]])
    jax.tree.map(np.testing.assert_array_equal, kept, part)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.uint16])
def test_columns_are_taken_from_tiles(dtype: jnp.dtype) -> None:
    limits = jnp.iinfo(dtype)
    table = np.random.default_rng(0).integers(limits.min, limits.max + 1, (40, 384)).astype(dtype)
    chosen = np.array([0, 127, 128, 383, 200, 200])
    np.testing.assert_array_equal(jax.jit(take_from_tiles)(table, chosen), table[:, chosen])


def test_planes_take_as_many_bits_as_files_or_slightly_more() -> None:
    assert set(BITS) == set(FORMATS)
    for name, bits in BITS.items():
        blocks = jax.ShapeDtypeStruct((128, FORMATS[name].row_bytes(512)), jnp.uint8)
        parts = jax.eval_shape(lambda blocks, name=name: pack(from_blocks(blocks, name)).parts, blocks)
        assert 8 * sum(part.size * part.dtype.itemsize for part in parts.values()) == bits * 128 * 512


@pytest.mark.parametrize("backend", ["tpu", "gpu"])
def test_accelerators_get_planes(backend: str) -> None:
    with using(platform=backend):
        assert layouts.prepare(matrix("Q8_0")).layout == "planes"


def test_xla_multiplies_planes_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    from pallas_kernels.matmul import xla_dequant

    weight = pack(matrix("Q4_K", 150))
    x = np.random.default_rng(1).normal(size=(2, 3, weight.width)).astype(np.float32)
    whole = jax.jit(partial(quant_matmul, impl="xla_dequant"))(x, weight)
    expected = x.astype(np.float64) @ np.asarray(dequantize(weight), np.float64).T
    monkeypatch.setattr(xla_dequant, "TILE_VALUES", 100 * weight.width)
    for got in (whole, jax.jit(partial(quant_matmul, impl="xla_dequant"))(x, weight)):
        assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)


def test_every_half_is_read_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = np.asarray(jax.jit(float_of_half)(bits.astype(np.int32)))
    expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))
