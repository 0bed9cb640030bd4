"""Products with matrices of floats, and of experts: every implementation against float64, and what is refused."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import dequantize, prepare
from test_quant_formats import random_blocks
from tiny_models import relative_rms

from pallas_kernels import using
from pallas_kernels.matmul import experts, explain_float, float_matmul, from_blocks, swiglu
from pallas_kernels.matmul.experts import EXPERTS
from pallas_kernels.matmul.floats import FLOAT_MATMUL

N, K, E = 24, 40, 6
EXACT = {"float32": 1e-6, "bfloat16": 5e-3}
"""Of both factors in the weight's dtype."""


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("lead", [(1,), (5,), (2, 8), (3, 11)])
@pytest.mark.parametrize("impl", FLOAT_MATMUL.names())
def test_products_are_those_of_float64(impl: str, lead: tuple[int, ...], dtype: str) -> None:
    x, weight = draw(*lead, K), jnp.asarray(draw(N, K, seed=1), dtype)
    if impl == "xla_few_rows" and np.prod(lead) > 16:
        with pytest.raises(ValueError, match=r"matmul\.float: impl='xla_few_rows' does not fit: M=33: made for"):
            float_matmul(x, weight, impl=impl)
        return
    got = jax.jit(partial(float_matmul, impl=impl))(x, weight)
    assert got.dtype == np.float32
    assert relative_rms(got, x.astype(np.float64) @ np.asarray(weight, np.float64).T) < EXACT[dtype]


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("impl", [None, "xla_dot", "reference"])
def test_blocks_are_multiplied_with_the_matrices_that_are_named(impl: str | None, rows: int) -> None:
    x, stack, index = draw(4, rows, K), draw(E, N, K, seed=1), np.array([3, 0, -1, 3])
    x[2] = 0
    got = jax.jit(partial(float_matmul, impl=impl))(x, stack, index=index)
    assert relative_rms(got, np.einsum("bmk,bnk->bmn", x.astype(np.float64), stack[index])) < 1e-6
    assert not np.asarray(got)[2].any()


def test_few_rows_have_a_form_of_their_own_on_cpus_alone() -> None:
    x, weight = jax.ShapeDtypeStruct((4, K), jnp.float32), jax.ShapeDtypeStruct((N, K), jnp.float32)
    assert "xla_few_rows  chosen" in explain_float(x, weight, platform="cpu")
    for platform in ("gpu", "tpu", "metal", "mps"):
        assert "xla_dot       chosen" in explain_float(x, weight, platform=platform)
    with using(platform="tpu"):
        program = jax.export.export(jax.jit(float_matmul), platforms=["tpu"])(x, weight).mlir_module()
    assert "optimization_barrier" not in program


@pytest.mark.parametrize(
    ("x", "weight", "options", "message"),
    [
        (draw(2, K), draw(N, K + 1), {}, r"got x \(2, 40\), weight \(24, 41\)"),
        (draw(2, K), draw(E, N, K), {}, r"got x \(2, 40\), weight \(6, 24, 40\)"),
        (draw(2, K), draw(E, N, K), {"index": np.zeros(2, int)}, r"got x \(2, 40\), weight \(6, 24, 40\)"),
        (draw(2, 1, K), draw(E, N, K), {"index": np.zeros(3, int)}, r"index has shape \(3,\); \[B\] is \(2,\)"),
        (draw(2, 1, K), draw(E, N, K), {"index": np.zeros(2)}, "index is float64; accepted: an integer dtype"),
        (draw(2, K), draw(N, K), {"impl": "xla"}, "matmul.float: impl='xla' is not known"),
    ],
)
def test_what_does_not_fit_is_refused(x: Any, weight: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        float_matmul(x, weight, **options)


D, F = 64, 96


def stacks(kind: str) -> tuple[list[Any], list[np.ndarray]]:
    """Matrices of experts as the operation gets them, and in float32."""
    if kind == "floats":
        own = [draw(E, *shape, seed=i) / 8 for i, shape in enumerate(((F, D), (F, D), (D, F)))]
        return list(own), own
    blocks = [
        from_blocks(random_blocks("Q8_0", E * n, k // 32, i).reshape(E, n, -1), "Q8_0")
        for i, (n, k) in enumerate(((F, D), (F, D), (D, F)))
    ]
    return [prepare(each) for each in blocks], [np.asarray(dequantize(each)) for each in blocks]


def gelu(gate: Any, up: Any) -> Any:
    return jax.nn.gelu(gate) * up


CROSSED = [
    *((1, None, "floats"), (7, gelu, "floats"), (60, None, "floats")),
    *((1, gelu, "packed"), (7, None, "packed"), (60, gelu, "packed")),
]
OTHERS = [each for each in product((1, 7, 60), (None, gelu), ("floats", "packed")) if each not in CROSSED]


@pytest.mark.parametrize(
    ("rows", "activation", "kind"),
    [*CROSSED, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
)
@pytest.mark.parametrize("impl", EXPERTS.names())
def test_experts_are_summed_with_their_weights(impl: str, rows: int, activation: Any, kind: str) -> None:
    given, (gate, up, down) = stacks(kind)
    x, weight = draw(rows, D), np.abs(draw(rows, 2, seed=9))
    expert = np.random.default_rng(3).permuted(np.tile(np.arange(E - 1), (rows, 1)), axis=1)[:, :2]  # one is not used
    call = partial(experts, activation=activation, limit=0.0 if activation else 2.0, impl=impl)
    got = jax.jit(call)(x, expert, weight, *given)
    g, u = (np.einsum("mcfd,md->mcf", each[expert], x) for each in (gate, up))
    hidden = np.asarray(swiglu(g, u, 2.0) if activation is None else activation(g, u), np.float64)
    want = np.einsum("mc,mcdf,mcf->md", weight, down[expert], hidden)
    assert relative_rms(got, want) < (1e-6 if kind == "floats" else 1e-3)


@pytest.mark.parametrize("rows", [1, pytest.param(7, marks=pytest.mark.slow), 60])
@pytest.mark.parametrize("impl", EXPERTS.names())
def test_experts_that_are_elsewhere_add_nothing(impl: str, rows: int) -> None:
    """Two parts of the experts, each of which numbers its own from 0, add up to all of them."""
    given = stacks("floats")[0]
    x, weight = draw(rows, D), np.abs(draw(rows, 2, seed=9))
    expert = np.random.default_rng(3).permuted(np.tile(np.arange(E), (rows, 1)), axis=1)[:, :2]
    whole = jax.jit(partial(experts, impl=impl))(x, expert, weight, *given)
    call = jax.jit(partial(experts, elsewhere=True, impl=impl))
    halves = slice(0, 3), slice(3, E)
    parts = [np.asarray(call(x, expert - own.start, weight, *(stack[own] for stack in given))) for own in halves]
    assert relative_rms(sum(parts), whole) < 1e-6


def test_experts_that_do_not_fit_together_are_refused() -> None:
    gate, up, down = stacks("floats")[0]
    x, expert, weight = draw(3, D), np.zeros((3, 2), np.int32), draw(3, 2)
    with pytest.raises(ValueError, match=r"gate and up are \[E, F, D\] and down is \[E, D, F\]; got x \(3, 64\), .*96"):
        experts(x, expert, weight, gate, up, up)
    with pytest.raises(ValueError, match=r"expert and weight are \[M, k\]; got \(2, 2\), \(3, 2\)"):
        experts(x, expert[:2], weight, gate, up, down)
    with pytest.raises(ValueError, match="experts: expert is float32; accepted: an integer dtype"):
        experts(x, weight, weight, gate, up, down)
