"""Products that share a call have the bits that each has alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, prepare, take_rows
from test_quant_formats import random_blocks

from pallas_kernels import native, using
from pallas_kernels.matmul import (
    FORMATS,
    QTensor,
    from_blocks,
    quant_matmul,
    quant_matmuls,
    quant_swiglu,
)

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "")
K, F, N = 256, 512, 37


def blocks(name: str, *shape: int, seed: int = 0) -> QTensor:
    """A random matrix [N, K], or a stack of them."""
    *stack, rows, width = shape
    count = width // FORMATS[name].values
    data = [random_blocks(name, rows, count, seed + i) for i in range(int(np.prod(stack, initial=1)))]
    return from_blocks(np.stack(data).reshape(*stack, rows, -1), name)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("act", ["a8", "a16"])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_products_of_one_call_are_those_of_several(rows: int, act: str) -> None:
    names = ["Q4_0", "Q6_K", "Q4_0", "TQ3_1S", "Q8_0"]
    weights = [prepare(blocks(name, N + 16 * i, K, seed=i)) for i, name in enumerate(names)]
    x = draw(rows, K)
    together = jax.jit(partial(quant_matmuls, act=act))(x, weights)
    alone = jax.jit(lambda x, weights: [quant_matmul(x, weight, act=act) for weight in weights])(x, weights)
    for name, got, want in zip(names, together, alone, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


swiglu_of_floats = jax.jit(partial(quant_swiglu, impl="xla_dequant"), static_argnames="limit")


def exact_swiglu(x: np.ndarray, gate: QTensor, up: QTensor, down: QTensor, limit: float) -> np.ndarray:
    gate, up, down = (np.asarray(dequantize(weight), np.float64) for weight in (gate, up, down))
    gated, upper = x @ gate.T, x @ up.T
    gated = gated / (1 + np.exp(-gated))
    if limit:
        gated, upper = np.minimum(gated, limit), np.clip(upper, -limit, limit)
    return (gated * upper) @ down.T


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize("names", [("Q8_0", "Q8_0", "Q8_0"), ("Q4_K", "Q5_0", "Q6_K")])
def test_swiglu_is_its_definition_and_rows_do_not_see_each_other(names: tuple[str, str, str], limit: float) -> None:
    of_file = [blocks(name, *shape, seed=9) for name, shape in zip(names, [(F, K), (F, K), (N, F)], strict=True)]
    weights = [prepare(weight) for weight in of_file]
    values = np.abs(np.asarray(dequantize(of_file[0]))).mean()
    x = draw(70, K) / (values * K**0.5)  # gates of ordinary size
    run = jax.jit(partial(quant_swiglu, limit=limit, act="a16"))
    got = np.asarray(run(x, *weights))
    expected = exact_swiglu(x.astype(np.float64), *of_file, limit)
    assert np.linalg.norm(got - expected) <= 2e-4 * np.linalg.norm(expected)
    np.testing.assert_array_equal(run(x[3:4], *weights), got[3:4])
    elsewhere = swiglu_of_floats(x, *of_file, limit=limit)
    assert np.linalg.norm(elsewhere - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("rows", [2, 14])  # the latter by tiles, where there are any
def test_blocks_meet_the_experts_that_an_index_names(rows: int) -> None:
    stacks = [prepare(blocks("Q8_0", 3, *shape)) for shape in ((F, K), (F, K), (N, F))]
    x, index = draw(4, rows, K), np.asarray([2, -1, 0, 7])
    got = np.asarray(quant_swiglu(x, *stacks, index=index))
    run = jax.jit(lambda x, stacks, expert: quant_swiglu(x, *(stack[expert] for stack in stacks)))
    for row, expert in enumerate([2, None, 0, 2]):
        alone = 0 if expert is None else run(x[row], stacks, expert)
        np.testing.assert_array_equal(got[row], np.broadcast_to(alone, (rows, N)))


def test_programs_may_batch_and_cast_and_no_rows_are_no_work() -> None:
    weights = [prepare(blocks("Q8_0", *shape)) for shape in ((F, K), (F, K), (N, F))]
    x = draw(3, 2, K)
    np.testing.assert_array_equal(jax.vmap(lambda x: quant_swiglu(x, *weights))(x), quant_swiglu(x, *weights))
    assert quant_swiglu(x.astype(jnp.bfloat16), *weights).dtype == jnp.bfloat16
    assert [out.dtype for out in quant_matmuls(x, weights[:2], dtype=jnp.bfloat16)] == [jnp.bfloat16] * 2
    assert quant_swiglu(x[:0], *weights).shape == (0, 2, N)


@pytest.mark.parametrize("impl", ["cpu_native", "xla_dequant"])
def test_arguments_that_do_not_fit_are_named(impl: str) -> None:
    shapes = {"gate": (F, K), "up": (F, K), "down": (N, F)}
    one = {name: prepare(blocks("Q8_0", *shape)) for name, shape in shapes.items()}
    three = {name: prepare(blocks("Q8_0", 3, *shape)) for name, shape in shapes.items()}
    two, index = prepare(blocks("Q8_0", 2, N, F)), np.zeros(4, np.int32)
    x, short, of_blocks = draw(2, K), draw(2, K - 32), draw(4, 2, K)
    swiglu, several = partial(quant_swiglu, impl=impl), partial(quant_matmuls, impl=impl)

    def refused(message: str, call: Callable, *args: object, **settings: object) -> None:
        with pytest.raises(ValueError, match=message):
            call(*args, **settings)

    refused(
        r"down is \[N, F\].*got \(512, 256\), \(512, 256\), \(37, 256\)",
        swiglu,
        x,
        **one | {"down": blocks("Q8_0", N, K)},
    )
    refused(r"gate \[N, K\]; got x \(2, 224\), gate \(512, 256\)", swiglu, short, **one)
    refused(
        r"weights\[0\] \[N, K\]; got x \(2, 224\), weights\[0\] \(512, 256\)", several, short, [one["gate"], one["up"]]
    )
    refused(r"got x \(2, 256\), gate \(3, 512, 256\)", swiglu, x, **three)
    refused(r"got x \(2, 256\), weights\[1\] \(3, 512, 256\)", several, x, [one["up"], three["up"]])
    refused(r"stacks of as many of each; got .*\(2, 37, 512\)", swiglu, of_blocks, **three | {"down": two}, index=index)
    refused(r"got index \(3,\), x \(4, 2, 256\), gate \(3, 512, 256\)", swiglu, of_blocks, **three, index=index[1:])
    refused("index is float32; accepted: integers", swiglu, of_blocks, **three, index=index.astype(np.float32))
    refused("quant_swiglu: act is 'a4'; accepted: a8, a16", swiglu, x, **one, act="a4")
    refused("quant_matmuls: act is 'a4'; accepted: a8, a16", several, x, [one["gate"], one["up"]], act="a4")
    refused("x is int32; accepted: floats", several, x.astype(np.int32), [one["gate"], one["up"]])
    refused("limit is -1.0; accepted: numbers above 0, or 0 for none", swiglu, x, **one, limit=-1.0)
    refused(r"one matrix \[N, K\]; got a stack \(3, 512, 256\)", take_rows, three["up"], index)
    refused("not empty; got uint8", from_blocks, np.zeros((0, 34), np.uint8), "Q8_0")


@pytest.mark.parametrize(
    ("limit", "index"),
    [
        (2.0, None),
        (0.0, np.array([1, -1, 0])),
        pytest.param(0.0, None, marks=pytest.mark.slow),
        pytest.param(2.0, np.array([1, -1, 0]), marks=pytest.mark.slow),
    ],
)
def test_native_products_have_the_derivatives_of_xla(limit: float, index: np.ndarray | None) -> None:
    stack = () if index is None else (2,)
    gate, up, down = (blocks("Q8_0", *stack, *shape, seed=i) for i, shape in enumerate([(F, K), (F, K), (N, F)]))
    x = draw(3, 4, K) if index is not None else draw(12, K)

    def loss(x: jax.Array, weights: list[QTensor]) -> jax.Array:
        out = quant_swiglu(x, *weights, limit=limit, index=index)
        alone = quant_matmul(x, weights[0], index=index)
        shared = quant_matmuls(x, weights[:2]) if index is None else [alone]
        return sum(jnp.sum(each * jnp.cos(jnp.arange(each.size).reshape(each.shape))) for each in (out, alone, *shared))

    got = jax.jit(jax.grad(loss))(x, [prepare(weight) for weight in (gate, up, down)])
    with using("xla"):
        want = jax.jit(jax.grad(loss))(x, [gate, up, down])
    assert np.linalg.norm(got - want) < 5e-3 * np.linalg.norm(want)  # rounded rows fall on the other side of a limit
