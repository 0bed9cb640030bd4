"""Norms keep their law in every implementation; the native ones give a row the same bits whatever is beside it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import here, needs_native
from rms_norm_cases import CASES, EPSILON, draw

from pallas_kernels import explain, native, using
from pallas_kernels.native import library
from pallas_kernels.rms_norm import l2_norm, rms_norm
from pallas_kernels.rms_norm.implementations import RMS_NORM


@pytest.mark.parametrize("impl", here(RMS_NORM.names()))
@pytest.mark.parametrize("name", CASES)
def test_every_implementation_follows_the_law(name: str, impl: str) -> None:
    case = CASES[name]
    np.testing.assert_allclose(case.run(impl), case.want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("impl", here(RMS_NORM.names()))
def test_rows_of_bfloat16_are_computed_in_float32(impl: str) -> None:
    x, weight = draw(3, 64).astype(jnp.bfloat16), draw(64)
    for norm in (partial(rms_norm, weight=weight), l2_norm):
        got = norm(x, epsilon=EPSILON, impl=impl)
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, norm(x.astype(jnp.float32), epsilon=EPSILON, impl=impl))


@needs_native
@pytest.mark.usefixtures("isa")
def test_a_row_has_the_same_bits_whatever_is_beside_it() -> None:
    x, weight, gate = draw(300, 1000), draw(1000), draw(300, 1000)
    norm = jax.jit(partial(rms_norm, epsilon=EPSILON, impl="cpu_native"))
    whole = np.asarray(norm(x, weight, gate=gate))
    for rows in (slice(0, 1), slice(7, 9), slice(250, 300)):
        np.testing.assert_array_equal(norm(x[rows], weight, gate=gate[rows]), whole[rows])


@needs_native
@pytest.mark.usefixtures("isa")
def test_zeros_huge_and_broken_rows() -> None:
    x = np.stack([np.zeros(64), np.full(64, 1e-20), np.full(64, 1e15), np.full(64, np.nan)]).astype(np.float32)
    gate = np.array([0, -200, 200, 1], np.float32)[:, None] * np.ones_like(x)
    got = np.asarray(rms_norm(x, np.ones(64, np.float32), epsilon=EPSILON, gate=gate, impl="cpu_native"))
    np.testing.assert_array_equal(got[:2], np.zeros((2, 64)) * gate[:2])
    np.testing.assert_allclose(got[2], 200, rtol=1e-6)
    assert np.isnan(got[3]).all()


@pytest.mark.parametrize("impl", here(RMS_NORM.names()))
@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0)])
def test_no_rows_and_rows_of_no_width_are_no_work(impl: str, shape: tuple[int, ...]) -> None:
    x = jnp.zeros(shape)
    assert rms_norm(x, jnp.ones(shape[-1]), epsilon=EPSILON, gate=x, impl=impl).shape == shape


@needs_native
def test_norms_have_the_same_bits_with_every_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, gate = draw(3, 1000), draw(1000), 20 * draw(3, 1000)
    results = []
    for name in native.instruction_sets():
        monkeypatch.setenv(library.ISA_VARIABLE, name)
        results.append(np.asarray(rms_norm(x, weight, epsilon=EPSILON, gate=gate, impl="cpu_native")))
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_derivatives_are_those_of_plain_xla_and_batches_are_allowed() -> None:
    x, weight, gate = draw(3, 4, 16), draw(16), draw(3, 4, 16)

    def loss(impl: str | None, x: jax.Array, weight: jax.Array, gate: jax.Array) -> jax.Array:
        return jnp.sum(rms_norm(x, weight, epsilon=EPSILON, gate=gate, impl=impl) ** 3)

    runs = [jax.jit(jax.grad(partial(loss, impl), argnums=(0, 1, 2))) for impl in (None, "reference")]
    gradients = [run(x, weight, gate) for run in runs]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *gradients)
    each = jax.vmap(lambda x, gate: rms_norm(x, weight, epsilon=EPSILON, gate=gate))(x, gate)
    np.testing.assert_array_equal(each, rms_norm(x, weight, epsilon=EPSILON, gate=gate))


def test_a_program_for_another_platform_is_plain_xla() -> None:
    norm = jax.jit(lambda x: rms_norm(x, epsilon=EPSILON))
    x = jax.ShapeDtypeStruct((4, 64), jnp.float32)
    with using(platform="tpu"):
        lowered = norm.trace(x).lower(lowering_platforms=("tpu",))
    assert "custom_call" not in lowered.as_text()
    lines = explain("rms_norm", D=64, platform="tpu").splitlines()
    assert [line.split()[0] for line in lines if "chosen" in line and "on cpu only" not in line] == ["xla_reduce"]


def test_wrong_arguments_are_named() -> None:
    x = jnp.ones((2, 8))
    with pytest.raises(ValueError, match=r"weight has shape \(7,\); \[D\] with x \(2, 8\) is \(8,\)"):
        rms_norm(x, jnp.ones(7), epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"got gate \(8,\), x \(2, 8\), a weight"):
        rms_norm(x, jnp.ones(8), epsilon=EPSILON, gate=jnp.ones(8))
    with pytest.raises(ValueError, match=r"rms_norm: x has shape \(\); accepted: \[... D\]"):
        rms_norm(jnp.ones(()), epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"l2_norm: x is int32; accepted: float32"):
        l2_norm(jnp.ones(8, jnp.int32), epsilon=EPSILON)
    with pytest.raises(ValueError, match=r"rms_norm: weight is of type list; accepted: an array \[D\]"):
        rms_norm(x, [1.0] * 8, epsilon=EPSILON)
    with pytest.raises(ValueError, match="no weight"):
        rms_norm(x, epsilon=EPSILON, gate=x)
