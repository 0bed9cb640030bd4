"""The kernels for GPUs multiply few rows with the decoded values, row by row alike."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, pack
from lowering import needs_triton
from test_quant_formats import random_blocks

from pallas_kernels import preference, using
from pallas_kernels.choices import Choice
from pallas_kernels.matmul import (
    FORMATS,
    QTensor,
    from_blocks,
    pallas_gpu,
    quant_matmul,
    quant_matmuls,
    quant_swiglu,
    triton_planes,
)
from pallas_kernels.matmul.config import (
    MULTIPROCESSORS,
    SHARES,
    GpuConfig,
    gpu_candidates,
    gpu_heuristic,
    programs_at_a_time,
)
from pallas_kernels.matmul.gpu_rows import MOST_CHUNKS
from pallas_kernels.matmul.implementations import TOGETHER
from pallas_kernels.matmul.planes import CHUNK
from pallas_kernels.table import Dims

OFF, ROUNDED = 5e-7, 5e-5
"""Relative error of sums in float32, and of what rounding x to 16 bits does to them."""
KERNELS = {
    "pallas_gpu": partial(pallas_gpu.quant_matmul, config=GpuConfig(columns=128, splits=3), interpret=True),
    "triton": partial(triton_planes.quant_matmul, config=triton_planes.Config(128, 2, 4, 1), interpret=True),
}
"""In their interpreters, with two splits, or three, which share the two chunks and are not equal."""
QUICK = ("Q4_K",)
IMPLEMENTATIONS = ["pallas_gpu", pytest.param("triton", marks=needs_triton)]


def matrix(name: str, rows: int = 150, seed: int = 0, width: int = 512) -> QTensor:
    """Two chunks, and two tiles of columns, which overlap."""
    return from_blocks(random_blocks(name, rows, width // FORMATS[name].values, seed), name)


def stack_of(matrices: Sequence[QTensor]) -> QTensor:
    return from_blocks(np.stack([each.parts["blocks"] for each in matrices]), matrices[0].format)


def activations(*shape: int, broken: tuple[int, ...] | None = None) -> np.ndarray:
    """With NaN at a place, or in all that an index names."""
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    if broken is not None:
        x[broken] = np.nan
    return x


def off_by(got: Any, x: Any, values: Any) -> float:
    expected = np.asarray(x, np.float64) @ np.asarray(values, np.float64).T
    return float(np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected))


def as_multiplied(x: np.ndarray, impl: str, name: str) -> np.ndarray:
    """What x is for a kernel: rounded to whole numbers where codes are multiplied as such."""
    if impl != "pallas_gpu" or FORMATS[name].table is not None:
        return np.asarray(x)
    groups = np.asarray(x, np.float64).reshape(*x.shape[:-1], -1, 32)
    step = np.maximum(np.abs(groups).max(axis=-1, keepdims=True), 1e-30) / 32639
    return (np.round(groups / step) * step).reshape(x.shape)


@pytest.mark.parametrize(
    ("name", "impl"),
    [
        pytest.param(name, impl, marks=marks)
        for name in FORMATS
        for impl, marks in (("pallas_gpu", () if name in QUICK else pytest.mark.slow), ("triton", needs_triton))
    ],
)
def test_rows_are_multiplied_with_the_values_and_do_not_see_each_other(name: str, impl: str) -> None:
    blocks, kernel = matrix(name), KERNELS[impl]
    weight, x = pack(blocks), activations(2, blocks.width)
    got = kernel(x, weight, "a16")
    assert off_by(got, as_multiplied(x, impl, name), dequantize(blocks)) <= OFF
    assert off_by(got, x, dequantize(blocks)) <= ROUNDED
    np.testing.assert_array_equal(kernel(x[:1], weight, "a16"), got[:1])


@pytest.mark.parametrize("impl", [pytest.param("pallas_gpu", marks=pytest.mark.slow), IMPLEMENTATIONS[1]])
def test_a_row_is_alike_in_a_call_of_any_size(impl: str) -> None:
    weight, x = pack(matrix("Q8_0")), activations(16, 512, broken=(1, 5))
    product = partial(quant_matmul, impl=f"{impl}_interpret")
    whole = product(x, weight)
    assert np.isnan(whole[1]).all()
    assert np.isfinite(whole[2:]).all()
    for rows in (1, 4):
        np.testing.assert_array_equal(product(x[:rows], weight), whole[:rows])
    assert product(x[:0], weight).shape == (0, 150)


def test_a_long_share_is_rounded_in_pieces() -> None:
    """The second piece begins among the chunks of the first."""
    blocks = matrix("Q8_0", 40, width=(MOST_CHUNKS + 2) * CHUNK)
    weight, x = pack(blocks), activations(2, blocks.width)
    in_pieces, at_once = (
        pallas_gpu.quant_matmul(x, weight, "a16", config=GpuConfig(columns=128, splits=splits), interpret=True)
        for splits in (1, 2)
    )
    np.testing.assert_allclose(in_pieces, at_once, atol=OFF * np.abs(np.asarray(at_once)).max())
    assert off_by(in_pieces, x, dequantize(blocks)) <= ROUNDED


def test_rows_of_any_size_are_rounded_by_their_own_numbers() -> None:
    """Nothing, numbers at both ends of what floats hold, infinities: each in a row of its own."""
    blocks = matrix("Q4_0", 40)
    x = activations(6, blocks.width) * np.array([0.0, 1e-32, 1e-38, 1e30, 1.0, 1.0], np.float32)[:, None]
    x[4, 3] = np.inf
    got = np.asarray(KERNELS["pallas_gpu"](x, pack(blocks), "a16"))
    values = dequantize(blocks)
    assert not np.any(got[0])
    for row in (1, 3, 5):
        assert off_by(got[row], x[row], values) <= ROUNDED
    assert np.abs(got[2] - np.asarray(x[2], np.float64) @ np.asarray(values, np.float64).T).max() < 1e-34
    assert not np.isfinite(got[4]).any()


def test_derivatives_are_those_of_the_product_that_rounds_nothing() -> None:
    weight, x = pack(matrix("Q4_0", 40)), activations(2, 512)

    def of_one(x: jax.Array, impl: str) -> jax.Array:
        return jnp.sum(quant_matmul(x, weight, impl=impl) ** 2)

    def of_several(x: jax.Array, impl: str) -> jax.Array:
        return sum(jnp.sum(out) for out in quant_matmuls(x, [weight] * 2, impl=impl))

    @partial(jax.jit, static_argnums=1)
    def gradients(x: jax.Array, impl: str) -> list[jax.Array]:
        return [jax.grad(loss)(x, impl) for loss in (of_one, of_several)]

    both = (map(np.asarray, gradients(x, impl)) for impl in ("pallas_gpu_interpret", "xla_dequant"))
    for got, want, bound in zip(*both, (1e-3, 1e-5), strict=True):
        np.testing.assert_allclose(got, want, atol=bound * np.abs(want).max())


@pytest.mark.parametrize("name", ["Q4_K", "IQ4_NL"])
def test_programs_with_wide_integers_multiply_alike(name: str) -> None:
    weight, x = pack(matrix(name, 40)), activations(1, 512)
    want = KERNELS["pallas_gpu"](x, weight, "a16")
    with jax.enable_x64(True):
        got = KERNELS["pallas_gpu"](x, weight, "a16")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        # Other tests multiply float32. Both kinds of kernel meet one of the other types.
        ("float16", "Q6_K"),
        ("bfloat16", "TQ4_1S"),
        pytest.param("bfloat16", "Q6_K", marks=pytest.mark.slow),
        pytest.param("float16", "TQ4_1S", marks=pytest.mark.slow),
        *(pytest.param("float32", name, marks=pytest.mark.slow) for name in ("Q6_K", "TQ4_1S")),
    ],
)
def test_activations_of_every_type_are_multiplied_as_they_are(dtype: str, name: str, impl: str) -> None:
    blocks = matrix(name, 40)
    x = activations(3, blocks.width).astype(dtype)
    got = quant_matmul(x, pack(blocks), dtype=jnp.float32, impl=f"{impl}_interpret")
    rounds = impl == "pallas_gpu" and FORMATS[name].table is None
    assert off_by(got, x, dequantize(blocks)) <= (ROUNDED if rounds else OFF)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_blocks_of_rows_meet_the_matrices_that_an_index_names(impl: str) -> None:
    stack = pack(stack_of([matrix("Q4_0", 40, seed) for seed in range(3)]))
    x = activations(4, 1, stack.width, broken=(2,))
    got = np.asarray(KERNELS[impl](x, stack, "a16", np.array([2, 0, -1, 7])))
    values = np.asarray(dequantize(stack))
    for block, number in ((0, 2), (1, 0), (3, 2)):
        assert off_by(got[block], as_multiplied(x[block], impl, "Q4_0"), values[number]) <= OFF
    assert not np.any(got[2])


def test_matrices_that_share_a_launch_are_multiplied_as_each_alone() -> None:
    """Of two formats, one of which is rotated; with fewer columns than a tile, and with more and an odd rest."""
    matrices = [matrix("Q4_0", 300), matrix("TQ3_1S", 40, 1)]
    weights, x = [pack(each) for each in matrices], activations(2, 512)
    config = GpuConfig(columns=256, splits=3)
    together = pallas_gpu.quant_matmuls(x, weights, "a16", config=config, interpret=True)
    for got, each, weight in zip(together, matrices, weights, strict=True):
        assert off_by(got, as_multiplied(x, "pallas_gpu", each.format), dequantize(each)) <= OFF
        own = replace(config, columns=256 if weight.rows > 128 else 128)
        np.testing.assert_array_equal(got, pallas_gpu.quant_matmul(x, weight, "a16", config=own, interpret=True))


def test_small_matrices_share_a_launch_however_wide_the_tiles_of_their_sum_are() -> None:
    matrices = [matrix("Q4_0", rows, seed) for seed, rows in enumerate((128, 40, 100))]
    assert gpu_heuristic({"N": 268, "K": 512, "format": "Q4_0"}).columns > 128
    x = activations(1, 512)
    together = quant_matmuls(x, [pack(each) for each in matrices], impl="pallas_gpu_interpret")
    for got, each in zip(together, matrices, strict=True):
        assert off_by(got, as_multiplied(x, "pallas_gpu", each.format), dequantize(each)) <= OFF
    assert quant_matmuls(x, []) == []


def test_what_was_left_out_for_a_matrix_does_not_take_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that multiplies with the largest matrix was found wrong for another one."""
    weights = [pack(matrix(name, rows)) for name, rows in (("Q4_0", 300), ("Q8_0", 150))]
    kernel, other, joined = "pallas_gpu_interpret", "xla_dequant", []

    def measured(operation: str, dims: Dims, platform: str) -> Choice:
        if dims["N"] == 300:
            return Choice(operation, {}, dims, (kernel, other), {}, {})
        return Choice(operation, {}, dims, (other,), {}, {kernel: "results differ"})

    def note(x: jax.Array, weights: Sequence[QTensor], *_: Any) -> list[jax.Array]:
        joined.extend(weight.format for weight in weights)
        return [jnp.zeros((2, weight.rows)) for weight in weights]

    monkeypatch.setattr(preference, "measured", measured)
    monkeypatch.setitem(TOGETHER, kernel, note)
    quant_matmuls(activations(2, 512), weights)
    assert joined == ["Q4_0"]


def test_blocks_of_rows_meet_stacks_that_share_a_launch() -> None:
    gate, up, down = (
        stack_of([matrix("Q4_0", rows, seed + i, width) for i in range(2)])
        for seed, rows, width in ((0, 256, 512), (2, 256, 512), (4, 40, 256))
    )
    x, index = activations(3, 1, 512, broken=(1,)), np.array([1, -1, 0])
    with using("matmul.packed=pallas_gpu_interpret"):
        got = np.asarray(jax.jit(quant_swiglu)(x, pack(gate), pack(up), pack(down), index=index))
    want = np.asarray(jax.jit(partial(quant_swiglu, impl="reference"))(x, gate, up, down, index=index))
    np.testing.assert_allclose(got[::2], want[::2], rtol=1e-4, atol=1e-4 * np.abs(want[::2]).max())
    assert not np.any(got[1])


@pytest.mark.parametrize("n", [48, 1024, 5120, 6144, 10240, 17408, 248320])
@pytest.mark.parametrize("k", [2048, 5120, 17408])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "Q5_K"])
def test_the_last_programs_keep_the_gpu_busy_as_the_first_do(name: str, n: int, k: int) -> None:
    dims = {"N": n, "K": k, "format": name}
    config = gpu_heuristic(dims)
    assert config in gpu_candidates(dims)
    tiles, places = -(-n // config.columns), MULTIPROCESSORS * programs_at_a_time(name, config.columns)
    rounds = tiles * config.splits / places
    assert config.splits == (1 if tiles >= places else SHARES * k // CHUNK) or rounds >= 0.85 * np.ceil(rounds)


def test_what_does_not_fit_is_an_error() -> None:
    weight, x = pack(matrix("Q8_0")), activations(2, 512)
    with pytest.raises(ValueError, match="'triton' does not fit: M=17 is over 16"):
        quant_matmul(activations(17, 512), weight, impl="triton")
    with pytest.raises(ValueError, match="'triton' does not fit: reads the layout 'planes'"):
        quant_matmul(x, matrix("Q8_0"), impl="triton")
    with pytest.raises(ValueError, match="accepted: at most 4 splits and 256 columns"):
        pallas_gpu.quant_matmul(x, weight, "a16", config=GpuConfig(128, 5), interpret=True)
    with pytest.raises(ValueError, match="columns is 100; accepted: 128, 256, 512"):
        GpuConfig(100, 1)
    with pytest.raises(ValueError, match="warps is 3; accepted: 2, 4, 8"):
        triton_planes.Config(64, 1, 3, 2)


@needs_triton
def test_splits_that_do_not_divide_the_depth_are_an_error() -> None:
    config = triton_planes.Config(64, 3, 4, 2)
    with pytest.raises(ValueError, match="accepted: splits that divide 2"):
        triton_planes.quant_matmul(activations(2, 512), pack(matrix("Q8_0")), "a16", config=config, interpret=True)


def test_there_are_block_sizes_for_all_shapes_of_models() -> None:
    for n, k in ((17408, 5120), (5120, 17408), (2048, 11008), (151936, 2560), (40, 256)):
        dims = {"N": n, "K": k, "format": "Q8_0"}
        for tunable in (pallas_gpu.TUNABLE, triton_planes.TUNABLE):
            assert tunable.heuristic(dims) in tunable.candidates(dims)
