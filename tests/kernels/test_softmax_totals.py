"""Totals of a softmax keep their law in every implementation."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import here, needs_native

from pallas_kernels import explain, native, using
from pallas_kernels.native import library
from pallas_kernels.softmax_totals import softmax_totals
from pallas_kernels.softmax_totals.implementations import SOFTMAX_TOTALS

each_implementation = pytest.mark.parametrize("impl", here(SOFTMAX_TOTALS.names()))


def draw(*shape: int, spread: float = 3) -> np.ndarray:
    return spread * np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)


def law(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the definition, in float64."""
    wide = x.astype(np.float64)
    peak = wide.max(axis=-1, keepdims=True)
    log_total = np.log(np.exp(wide - peak).sum(axis=-1, keepdims=True)) + peak
    p = np.exp(wide - log_total)
    return log_total[..., 0], -np.sum(np.where(p > 0, p * np.where(p > 0, wide - log_total, 0), 0), axis=-1)


@each_implementation
@pytest.mark.parametrize("width", [1, 31, 1000, 5000, 100_003])
@pytest.mark.parametrize("spread", [0, 3, 40])
def test_every_implementation_follows_the_law(impl: str, width: int, spread: float) -> None:
    x = 100 + draw(2, 3, width, spread=spread)
    got, want = softmax_totals(x, impl=impl), law(x)
    np.testing.assert_allclose(got.log_total, want[0], rtol=1e-6)
    np.testing.assert_allclose(got.entropy, want[1], rtol=1e-5, atol=2e-5)


@each_implementation
def test_excluded_values_and_broken_rows(impl: str) -> None:
    inf, nan = np.inf, np.nan
    x = np.tile(draw(70), (6, 1))
    x[0, ::2] = -inf
    x[1] = -inf
    x[2, 69] = nan
    x[3] = nan
    x[4, 0] = inf
    x[5, 1:] = -1e30
    got = softmax_totals(x, impl=impl)
    want = law(x[0, 1::2])
    np.testing.assert_allclose(got.log_total, [want[0], -inf, nan, nan, nan, x[5, 0]], rtol=1e-6)
    np.testing.assert_allclose(got.entropy, [want[1], 0, nan, nan, nan, 0], rtol=1e-5, atol=1e-6)


@needs_native
def test_a_row_has_the_same_bits_whatever_is_beside_it_and_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, results = draw(300, 3000), []
    for name in native.instruction_sets():
        monkeypatch.setenv(library.ISA_VARIABLE, name)
        totals = partial(softmax_totals, impl="cpu_native")
        results.append(np.asarray(totals(x)))
        np.testing.assert_array_equal(np.asarray(totals(x[7:9])), results[0][:, 7:9])
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_derivatives_are_those_of_plain_xla_and_batches_are_allowed() -> None:
    x = draw(3, 4, 16)

    def loss(impl: str | None, x: jax.Array) -> jax.Array:
        got = softmax_totals(x, impl=impl)
        return jnp.sum(got.log_total**2 + got.entropy**3)

    got, want = (jax.jit(jax.grad(partial(loss, impl))) for impl in (None, "reference"))
    np.testing.assert_allclose(got(x), want(x), atol=1e-4)
    x[0, 0, :3] = -np.inf
    assert np.isfinite(got(x)).all(), "excluded values change nothing"
    np.testing.assert_array_equal(jax.vmap(softmax_totals)(x), softmax_totals(x))


def test_a_program_for_another_platform_is_plain_xla() -> None:
    x = jax.ShapeDtypeStruct((4, 64), jnp.float32)
    with using(platform="tpu"):
        lowered = jax.jit(softmax_totals).trace(x).lower(lowering_platforms=("tpu",))
    assert "custom_call" not in lowered.as_text()
    lines = explain("softmax_totals", V=64, platform="tpu").splitlines()
    assert [line.split()[0] for line in lines if "chosen" in line and "on cpu only" not in line] == ["xla_sums"]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"softmax_totals: x has shape \(\); accepted: \[... V\]"):
        softmax_totals(jnp.ones(()))
    with pytest.raises(ValueError, match=r"softmax_totals: x is int32; accepted: float32"):
        softmax_totals(jnp.ones(8, jnp.int32))
