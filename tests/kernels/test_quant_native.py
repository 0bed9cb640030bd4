"""The native CPU kernels keep the law of products with quantized matrices, row by row alike in a call of any size."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, prepare, submatrix
from test_quant_formats import random_blocks

from pallas_kernels import matmul, native
from pallas_kernels.matmul import FORMATS, QTensor, explain, from_blocks, quant_matmul, reference
from pallas_kernels.native import library

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "")
N = 37  # two panels and five rows of a third
ROWS = 17
OFF = {"a8": 8e-3, "a16": 5e-5}
"""Relative error of rounding activations to so many bits."""


def matrix(name: str, rows: int = N, seed: int = 0) -> tuple[QTensor, QTensor]:
    """The same values as blocks and as panels; three steps of the kernel, the last one of another length."""
    blocks = from_blocks(random_blocks(name, rows, 768 // FORMATS[name].values - 1, seed), name)
    return blocks, prepare(blocks)


def activations(rows: int, width: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def rounded(x: np.ndarray, act: str) -> np.ndarray:
    """`reference.round_activations` with divisions that are exact to the last bit, which XLA's are not."""
    groups = x.reshape(len(x), -1, reference.GROUP)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(reference.LARGEST[act])
    return (np.rint(groups / scale) * scale).reshape(x.shape)


law = jax.jit(reference.quant_matmul, static_argnames="act")


def off_by(got: jax.Array, expected: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("act", ["a8", "a16"])
@pytest.mark.parametrize("name", FORMATS)
def test_products_keep_the_law_and_rows_do_not_see_each_other(name: str, act: str) -> None:
    blocks, panels = matrix(name)
    x = activations(ROWS, blocks.width)
    # Each a number of rows that kernels have code for, or the first or last of a tile.
    few = [slice(m) for m in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, ROWS)]
    product = jax.jit(lambda x, w: [quant_matmul(x[m], w, act=act, impl="cpu_native") for m in (slice(16, None), *few)])
    alone, *fewer, whole = map(np.asarray, product(x, panels))
    values = np.asarray(dequantize(blocks), np.float64)
    if name.startswith("TQ"):  # rotated activations are rounded, by as much as others
        assert off_by(whole, x.astype(np.float64) @ values.T) <= OFF[act]
    else:
        assert off_by(whole, rounded(x, act).astype(np.float64) @ values.T) <= 1e-6
        assert off_by(whole, law(x, blocks, act)) <= 5e-6
    for few_rows in fewer:
        np.testing.assert_array_equal(few_rows, whole[: len(few_rows)])
    np.testing.assert_array_equal(alone, whole[16:])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("act", ["a8", "a16"])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K", "TQ3_1S"])  # one of each kind of scales
def test_many_rows_are_worked_on_in_slabs(name: str, act: str) -> None:
    """Slabs of 64, and with AMX in tiles of 16 of which the last one is not full."""
    _, panels = matrix(name)
    x = activations(131, panels.width)
    some = [slice(0, 131), slice(14, 17), slice(63, 66), slice(128, 131), slice(90), slice(0)]
    product = jax.jit(lambda x, w: [quant_matmul(x[rows], w, act=act, impl="cpu_native") for rows in some])
    whole, *parts = map(np.asarray, product(x, panels))
    for rows, part in zip(some[1:], parts, strict=True):
        np.testing.assert_array_equal(part, whole[rows])
    assert parts[-1].shape == (0, N)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q6_K", "TQ3_1S"])
@pytest.mark.parametrize("act", ["a8", "a16"])
def test_zeros_denormals_huge_and_broken_values(name: str, act: str) -> None:
    blocks, panels = matrix(name)
    normal = activations(1, blocks.width)[0]
    broken = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
    x = np.stack([0 * normal, normal * 1e-41, normal * 1e34, normal, *(normal for _ in broken)]).astype(np.float32)
    x[4:, 40] = list(broken.values())
    product = jax.jit(lambda given, w: [quant_matmul(x, w, act=act, impl="cpu_native") for x in given])
    got, many, alone = map(np.asarray, product((x, np.tile(x, (3, 1)), normal[None]), panels))
    np.testing.assert_array_equal(many, np.tile(got, (3, 1)))
    assert not got[0].any()
    assert np.abs(got[1]).max() < 1e-30
    exact = np.asarray(dequantize(blocks), np.float64) @ x[2].astype(np.float64)
    assert off_by(got[2], exact) <= 2 * OFF[act]
    np.testing.assert_array_equal(got[3], alone[0])
    assert np.isnan(got[4:]).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("act", ["a8", "a16"])
@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("TQ")])
def test_sums_of_the_largest_codes_and_activations_do_not_overflow(name: str, act: str) -> None:
    """Kernels multiply codes of which all bits are set, and activations differ in sign alone: none is rounded."""
    kind, x = FORMATS[name], np.ones((4, 512), np.float32)
    data = np.full((16, 512 // kind.values, kind.num_bytes), 127 if name == "Q8_0" else 255, np.uint8)
    data[..., kind.first_half :][..., : 2 * kind.halves] = np.full(kind.halves, 0.25, np.float16).view(np.uint8)
    x[1:] = -x[1:]
    x[2, ::2], x[3, ::3] = 1, 1
    blocks = from_blocks(data.reshape(16, -1), name)
    exact = x.astype(np.float64) @ np.asarray(dequantize(blocks), np.float64).T
    product = jax.jit(lambda x, w: [quant_matmul(x[:m], w, act=act, impl="cpu_native") for m in (1, 2, 3, 4, 16)])
    for got in product(np.tile(x, (4, 1)), prepare(blocks)):
        expected = np.tile(exact, (4, 1))[: len(got)]
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("rows", [2, 14])  # the latter by tiles, where there are any
@pytest.mark.parametrize("impl", ["cpu_native", "xla_dequant"])
def test_blocks_of_rows_meet_the_matrices_that_an_index_names(impl: str, rows: int) -> None:
    stack = prepare(from_blocks(np.stack([matrix("Q4_K", seed=seed)[0].parts["blocks"] for seed in range(3)]), "Q4_K"))
    x = activations(5 * rows, stack.width).reshape(5, rows, -1)
    x[3] = np.nan  # which nobody reads
    index = np.array([2, 0, 0, -1, 7])
    got = np.asarray(jax.jit(lambda x, w, i: quant_matmul(x, w, index=i, impl=impl))(x, stack, index))
    alone = jax.jit(lambda x, w, i: quant_matmul(x, w[i], impl=impl))
    for block, number in enumerate([2, 0, 0, None, 2]):
        expected = np.zeros((rows, N)) if number is None else alone(x[block], stack, number)
        np.testing.assert_allclose(got[block], expected, rtol=0 if impl == "cpu_native" else 1e-4, atol=1e-4)


def test_programs_may_batch_and_cast() -> None:
    _, panels = matrix("Q5_K")
    x = activations(6, panels.width).reshape(3, 2, -1)
    whole = quant_matmul(x, panels, impl="cpu_native")
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: quant_matmul(x, panels, impl="cpu_native")))(x), whole)
    half = quant_matmul(jnp.asarray(x, jnp.bfloat16), panels, impl="cpu_native")
    assert half.dtype == jnp.bfloat16
    assert off_by(half, np.asarray(whole, np.float64)) < 1e-2


@jax.jit
def of_panels(stack: QTensor, odd: QTensor, kept: QTensor, rows: jax.Array, x: jax.Array) -> tuple[Any, ...]:
    """Values, some rows, and products: one program for all of them compiles in less time than many."""
    products = [quant_matmul(x, weight, impl="cpu_native") for weight in (odd, kept)]
    return [matmul.dequantize(each) for each in (stack, odd, kept)], matmul.take_rows(odd, rows), products


@jax.jit
def of_files(*weights: QTensor) -> list[jax.Array]:
    return [matmul.dequantize(each) for each in weights]


@pytest.mark.parametrize("name", FORMATS)
def test_panels_hold_the_values_of_blocks_in_as_many_bytes(name: str) -> None:
    stack = from_blocks(np.stack([matrix(name, 48, seed)[0].parts["blocks"] for seed in range(2)]), name)
    panels = prepare(stack)
    assert panels.shape == stack.shape
    assert panels.nbytes <= 1.05 * stack.nbytes
    blocks, odd = matrix(name)
    rows = np.array([[0, 17, 36], [15, 99, 16]])
    some = np.array([3, 36, 17, 0, 5, 31, 16, 15, 32, 99, 1, 2, 4, 6, 7, 8, 9])  # two panels, the second not full
    kept = submatrix(odd, some)
    assert (kept.shape, kept.layout) == ((17, odd.width), odd.layout)
    read = jax.tree.map(np.asarray, of_panels(panels, odd, kept, rows, activations(2, odd.width)))
    (of_stack, of_odd, of_kept), taken, (whole, part) = read
    of_blocks, values = jax.tree.map(np.asarray, of_files(stack, blocks))
    np.testing.assert_array_equal(of_stack, of_blocks)
    np.testing.assert_array_equal(of_odd, values)
    np.testing.assert_array_equal(of_kept, values[np.minimum(some, 36)])
    np.testing.assert_array_equal(taken, values[np.minimum(rows, 36)])
    np.testing.assert_array_equal(part, whole[:, np.minimum(some, 36)])


def test_panels_are_chosen_and_an_instruction_set_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, panels = matrix("Q8_0")
    x = activations(2, blocks.width)
    assert re.search(r"cpu_native +chosen", explain(x, panels))
    assert "passed over: reads the layout 'panels16'" in explain(x, blocks)
    monkeypatch.setenv(library.ISA_VARIABLE, "mmx")
    with pytest.raises(ValueError, match="SPECJAX_CPU_ISA=mmx: this processor has portable"):
        quant_matmul(x, panels)
