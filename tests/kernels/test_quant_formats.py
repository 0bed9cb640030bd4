"""Packed bytes mean what ggml says they mean, and products with them are products with those values."""

from functools import partial

import gguf
import jax
import numpy as np
import pytest
from compiled import dequantize, submatrix, take_rows

from pallas_kernels import native, native_tables
from pallas_kernels.matmul import (
    FORMATS,
    ROWS_THAT_JOIN,
    explain,
    from_blocks,
    joined,
    panels,
    planes,
    quant_matmul,
)
from pallas_kernels.matmul.formats import TQ3_CENTROIDS, TQ4_CENTROIDS, TQ_SIGNS

GGML = [name for name in FORMATS if not name.startswith("TQ")]


def random_blocks(name: str, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes with finite scales: every float16 of a block lies between 2^-8 and 2^-2 in magnitude."""
    rng, kind = np.random.default_rng(seed), FORMATS[name]
    data = rng.integers(0, 256, (rows, blocks, kind.num_bytes), np.uint8)
    scales = rng.uniform(2**-8, 2**-2, (rows, blocks, 2)).astype(np.float16) * rng.choice([-1, 1], (rows, blocks, 2))
    as_bytes = scales.astype(np.float16).view(np.uint8)
    data[..., kind.first_half :][..., : 2 * kind.halves] = as_bytes[..., : 2 * kind.halves]
    return data.reshape(rows, -1)


@pytest.mark.parametrize("name", GGML)
def test_bytes_decode_as_in_the_gguf_package(name: str) -> None:
    blocks = random_blocks(name, 7, 5)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(dequantize(from_blocks(blocks, name)), expected)


@pytest.mark.parametrize(("name", "centroids", "bits"), [("TQ3_1S", TQ3_CENTROIDS, 3), ("TQ4_1S", TQ4_CENTROIDS, 4)])
def test_tq_blocks_decode_by_butterflies(name: str, centroids: tuple[float, ...], bits: int) -> None:
    block = random_blocks(name, 1, 1)[0]
    stream = int.from_bytes(block[4:].tobytes(), "little")
    scales = block[:4].view(np.float16).astype(np.float64)
    values = [centroids[stream >> bits * i & (1 << bits) - 1] * scales[i // 16] for i in range(32)]
    half = 1
    while half < 32:
        for i in range(32):
            if not i & half:
                values[i], values[i | half] = values[i] + values[i | half], values[i] - values[i | half]
        half *= 2
    expected = np.array(values) / np.sqrt(32) * TQ_SIGNS
    got = np.asarray(dequantize(from_blocks(block[None], name)))[0]
    np.testing.assert_allclose(got, expected, atol=1e-6 * np.abs(expected).max())


DECODED_ELSEWHERE = {
    "TQ3_1S": (
        "0038003407121d28333e49545f6a7580",
        "-0.75765 -0.88473 0.11598 0.66925 -0.6479 -0.56576 -0.37805 0.53799 0.306 -0.44602 0.12406 -0.45517 -0.26944 "
        "0.29736 -0.44427 1.43199 0.47765 -0.58556 -0.05743 0.71794 -0.1068 0.16917 -0.64887 1.00742 0.34501 0.45777 "
        "0.26157 -0.98655 0.57996 -0.38303 -0.40418 0.28505",
    ),
    "TQ4_1S": (
        "0038003407121d28333e49545f6a75808b96a1ac",
        "-1.06759 -1.09044 0.02388 -0.34079 -0.08854 0.43274 0.2113 -0.2002 0.52536 -0.50251 0.62628 -0.79632 -0.21913 "
        "-0.16167 -0.17267 0.23884 1.11414 -1.18268 -0.09736 -0.08075 -0.64574 0.45005 0.5988 -0.63571 0.29411 0.22557 "
        "0.1065 -0.22954 -0.67556 0.66189 -0.56227 0.67224",
    ),
}
"""Blocks, and their values as dequantize_row_tq3_1s and dequantize_row_tq4_1s of TheTom/llama-cpp-turboquant give them
(branch feature/turboquant-kv-cache, ggml-turbo-quant.c)."""


@pytest.mark.parametrize("name", DECODED_ELSEWHERE)
def test_tq_blocks_mean_what_the_fork_that_defines_them_says(name: str) -> None:
    block, expected = DECODED_ELSEWHERE[name]
    got = np.asarray(dequantize(from_blocks(np.frombuffer(bytes.fromhex(block), np.uint8)[None], name)))[0]
    np.testing.assert_allclose(got, np.array(expected.split(), float), atol=6e-6)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_product_is_that_of_the_decoded_matrix(name: str, rows: int) -> None:
    weight = from_blocks(random_blocks(name, 24, 3), name)
    x = np.random.default_rng(1).normal(size=(rows, weight.width)).astype(np.float32)
    expected = x.astype(np.float64) @ np.asarray(dequantize(weight), np.float64).T
    got = jax.jit(partial(quant_matmul, impl="xla_dequant"))(x, weight)
    assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)


def test_a_large_matrix_is_decoded_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    from pallas_kernels.matmul import xla_dequant

    weight = from_blocks(random_blocks("Q8_0", 23, 4), "Q8_0")
    x = np.random.default_rng(1).normal(size=(2, 3, 128)).astype(np.float32)
    whole = jax.jit(partial(quant_matmul, impl="xla_dequant"))(x, weight)
    monkeypatch.setattr(xla_dequant, "TILE_VALUES", 5 * 128)
    tiled = jax.jit(partial(quant_matmul, impl="xla_dequant"))(x, weight)
    np.testing.assert_allclose(tiled, whole, rtol=1e-5, atol=1e-5)


def test_rounded_activations_are_off_by_half_a_step_at_most() -> None:
    from pallas_kernels.matmul.reference import LARGEST, round_activations

    x = np.random.default_rng(2).normal(size=(3, 64)).astype(np.float32)
    x[0, :32] = 0
    for act in ("a8", "a16"):
        step = np.repeat(np.abs(x.reshape(3, 2, 32)).max(-1), 32, axis=-1) / LARGEST[act]
        assert np.all(np.abs(jax.jit(partial(round_activations, act=act))(x) - x) <= 0.5001 * step)


def test_rows_and_matrices_of_a_stack_can_be_taken() -> None:
    blocks = np.stack([random_blocks("Q4_K", 6, 2, seed) for seed in range(3)])
    stack = from_blocks(blocks, "Q4_K")
    assert stack.shape == (3, 6, 512)
    assert stack.nbytes == blocks.nbytes
    values = np.asarray(dequantize(stack))
    taken = jax.jit(lambda tensor, i, rows: take_rows(tensor[i], rows))(stack, 2, np.array([[5, 0], [3, 9]]))
    np.testing.assert_array_equal(taken, values[2][np.array([[5, 0], [3, 5]])])
    kept = submatrix(stack[2], np.array([5, 0, 9]))
    assert kept.shape == (3, 512)
    np.testing.assert_array_equal(dequantize(kept), values[2][np.array([5, 0, 5])])
    with pytest.raises(ValueError, match="submatrix: rows are taken from one matrix"):
        submatrix(stack, np.array([0]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_block_of_zero_bytes_is_zeros(name: str) -> None:
    """Parts of a split matrix are filled up with them."""
    kind = FORMATS[name]
    values = dequantize(from_blocks(np.zeros((2, 2 * kind.num_bytes), np.uint8), name))
    np.testing.assert_array_equal(values, np.zeros((2, 2 * kind.values)))


LAYOUTS = {"blocks": lambda tensor: tensor, "planes": planes.pack, "panels": panels.pack}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_stand_one_below_the_other(layout: str) -> None:
    if layout == "panels" and not native.available():
        pytest.skip("no native library")
    blocks = [random_blocks("Q4_K", ROWS_THAT_JOIN, 1, seed) for seed in range(2)]
    matrices = [LAYOUTS[layout](from_blocks(each, "Q4_K")) for each in blocks]
    whole = joined(*matrices)
    assert whole.shape == (2 * ROWS_THAT_JOIN, 256)
    np.testing.assert_array_equal(dequantize(whole), np.concatenate([dequantize(matrix) for matrix in matrices]))


def test_what_does_not_fit_is_an_error() -> None:
    weight = from_blocks(np.zeros((4, 68), np.uint8), "Q8_0")
    with pytest.raises(ValueError, match=r"got x \(2, 32\), weight \(4, 64\)"):
        quant_matmul(np.zeros((2, 32), np.float32), weight)
    with pytest.raises(ValueError, match="act is 'a4'; accepted: a8, a16"):
        quant_matmul(np.zeros((2, 64), np.float32), weight, act="a4")
    with pytest.raises(ValueError, match=r"a multiple of 34.*got uint8 \(4, 70\)"):
        from_blocks(np.zeros((4, 70), np.uint8), "Q8_0")
    with pytest.raises(ValueError, match="'Q9' cannot be computed with"):
        from_blocks(np.zeros((4, 70), np.uint8), "Q9")
    assert "format=Q8_0" in explain(np.zeros((2, 64), np.float32), weight)


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_are_assembled_from_what_is_read_of_them(name: str) -> None:
    kind, blocks = FORMATS[name], random_blocks(name, 3, 4).reshape(3, 4, -1)
    read = jax.jit(lambda x: (kind.codes.read(x), kind.half_bits(x), [part.values(x) for part in kind.byte_scales]))
    codes, halves, scales = jax.tree.map(np.asarray, read(blocks))
    np.testing.assert_array_equal(kind.assemble(codes, halves.view(np.float16), scales), blocks)


def test_the_tables_of_the_native_kernels_are_those_of_the_formats() -> None:
    """After a change of a format: `python -m pallas_kernels.native_tables`."""
    headers = native_tables.headers()
    assert {path.parent.name for path in headers} == {"quant_matmul", "attention"}
    for path, text in headers.items():
        assert path.read_text(encoding="utf-8") == text, path
