"""Prefill can be trained through."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_delta_cases import DK, draw, rms_error

from pallas_kernels import gated_delta
from pallas_kernels.gated_delta import reference, xla_chunked
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.gated_delta.triangular import solve_unit_lower

NAMES = ("q", "k", "v", "g", "beta", "state")


def loss(function, inputs):
    """Weighs every output and state entry differently."""
    out, state = function(*inputs)
    return jnp.sum(jnp.sin(jnp.arange(out.size)).reshape(out.shape) * out) + jnp.sum(
        jnp.cos(jnp.arange(state.size)).reshape(state.shape) * state
    )


def gradients(function, inputs):
    return jax.jit(jax.grad(functools.partial(loss, function)))(inputs)


def law_gradients(inputs, head_map, n_tokens):
    with jax.enable_x64(True):

        def function(*inputs):
            counts = jnp.full((2,), n_tokens)
            return reference.prefill(Tokens(*inputs[:5]), inputs[5], counts, head_map=head_map, scale=DK**-0.5)

        return [np.asarray(x) for x in gradients(function, tuple(x.astype(np.float64) for x in inputs))]


@pytest.mark.parametrize("head_map", ["tiled", "grouped"])
def test_prefill_gradients_equal_those_of_the_recurrence(head_map, monkeypatch):
    monkeypatch.setattr(xla_chunked, "CHUNK", 4)
    n_tokens = 10  # two whole chunks and a part
    inputs = tuple(draw().first(n_tokens))
    expected = law_gradients(inputs, head_map, n_tokens)
    got = gradients(functools.partial(gated_delta.prefill, head_map=head_map), inputs)
    for name, gradient, truth in zip(NAMES, got, expected, strict=True):
        assert rms_error(gradient, truth) < 1e-5, name


def test_prefill_gradients_are_finite_when_decays_underflow():
    got = gradients(gated_delta.prefill, tuple(draw("forgetting")))
    for name, gradient in zip(NAMES, got, strict=True):
        assert np.isfinite(gradient).all(), name


def test_padding_has_no_gradient():
    inputs = [np.array(x) for x in draw().first(6)]
    for x in inputs[:5]:
        x[:, 4:] = np.nan
    n_valid = np.array([4, 0])
    got = gradients(functools.partial(gated_delta.prefill, n_valid=n_valid), tuple(inputs))
    for name, gradient in zip(NAMES, map(np.asarray, got), strict=True):
        assert np.isfinite(gradient).all(), name
        if name != "state":
            assert not np.any(gradient[0, 4:]), name
            assert not np.any(gradient[1]), name


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 32, 64])
def test_triangular_solve_is_exact_where_powers_of_the_matrix_explode(n):
    """Equal keys and beta 1 make A all ones; the powers of such a matrix grow like binomial coefficients."""
    a = np.tril(np.random.default_rng(n).uniform(0.9, 1.0, (2, n, n)), -1)
    rhs = np.random.default_rng(n + 1).standard_normal((2, n, 3))
    got = jax.jit(solve_unit_lower)(a.astype(np.float32), rhs.astype(np.float32))
    assert rms_error(got, np.linalg.solve(np.eye(n) + a, rhs)) < 1e-6
