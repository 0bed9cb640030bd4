"""The causal convolution keeps its law, and its window moves by exactly the accepted tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.causal_conv1d import causal_conv1d, window_at
from pallas_kernels.causal_conv1d.api import IMPLEMENTATIONS
from pallas_kernels.causal_conv1d.reference import convolve

B, C, W = 2, 12, 4
ROUNDING = {"float32": 1e-6, "bfloat16": 2e-3}


def draw(n_tokens, dtype="float32"):
    rng = np.random.default_rng(n_tokens)
    x, weight, window = (
        np.asarray(jnp.asarray(rng.standard_normal(shape), dtype))
        for shape in ((B, n_tokens, C), (C, W), (B, W - 1, C))
    )
    return x, weight.astype(np.float32), window


def law(x, weight, window, activation):
    with jax.enable_x64(True):
        inputs = jnp.concatenate([window, x], axis=1).astype(jnp.float64)
        return np.asarray(convolve(inputs, jnp.asarray(weight, jnp.float64), activation=activation))


@pytest.mark.parametrize("impl", [i.name for i in IMPLEMENTATIONS])
@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_tokens", [1, 3, 9])
def test_convolution_equals_the_law(impl, activation, dtype, n_tokens):
    x, weight, window = draw(n_tokens, dtype)
    out, inputs = causal_conv1d(x, weight, window, activation=activation, impl=impl)
    expected = law(x, weight, window, activation)
    assert out.dtype == dtype
    assert np.sqrt(np.mean((np.asarray(out, np.float64) - expected) ** 2) / np.mean(expected**2)) < ROUNDING[dtype]
    np.testing.assert_array_equal(inputs, np.concatenate([window, x], axis=1))


def test_the_last_tap_meets_the_token_itself():
    x = np.arange(1.0, 4.0, dtype=np.float32).reshape(1, 3, 1)
    weight = np.array([[1000, 100, 10, 1]], np.float32)
    out, _ = causal_conv1d(x, weight, np.zeros((1, 3, 1), np.float32), activation=None)
    np.testing.assert_array_equal(out[0, :, 0], [1, 12, 123])


def test_the_window_after_n_tokens_continues_as_if_only_they_had_been_fed():
    x, weight, window = draw(9)
    whole, _ = causal_conv1d(x, weight, window)
    poisoned = x.copy()
    poisoned[0, 2:], poisoned[1, 5:] = np.nan, np.nan
    first, inputs = causal_conv1d(poisoned, weight, window)
    np.testing.assert_array_equal(first[0, :2], whole[0, :2])
    for row, n in enumerate((2, 5)):
        rest, _ = causal_conv1d(x[:, n:], weight, window_at(inputs, np.array([2, 5]), W - 1))
        np.testing.assert_array_equal(rest[row], whole[row, n:])


def test_no_accepted_token_keeps_the_window():
    x, weight, window = draw(3)
    _, inputs = causal_conv1d(x, weight, window)
    np.testing.assert_array_equal(window_at(inputs, np.array([0, 0]), W - 1), window)


def test_convolution_can_be_trained_through():
    x, weight, window = draw(5)

    def loss(x, weight, impl):
        return jnp.sum(jnp.sin(causal_conv1d(x, weight, window, impl=impl)[0]))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
    got, expected = (gradient(x, weight, impl) for impl in (None, "reference"))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((B, C), np.float32)}, r"x is \[B, T, C\].*got x \(2, 12\)"),
        ({"weight": np.zeros((W, C), np.float32)}, r"weight has shape \(4, 12\); \[C W\] with x \(2, 5, 12\)"),
        ({"window": np.zeros((B, W, C), np.float32)}, r"window has shape \(2, 4, 12\); \[B W-1 C\] is \(2, 3, 12\)"),
        ({"activation": "gelu"}, r"activation is 'gelu'; accepted: 'silu', None"),
        ({"impl": "fast"}, r"impl='fast' is not known.*xla_shifted, reference"),
    ],
)
def test_a_bad_argument_is_named(changed, message):
    x, weight, window = draw(5)
    with pytest.raises(ValueError, match=rf"causal_conv1d: {message}"):
        causal_conv1d(**{"x": x, "weight": weight, "window": window, **changed})


@pytest.mark.parametrize(
    ("offset", "width", "message"),
    [([0, 0], 9, r"width is 9; inputs \(2, 8, 12\)"), ([0], 3, r"offset has shape \(1,\); \[B\] is \(2,\)")],
)
def test_a_bad_window_is_named(offset, width, message):
    with pytest.raises(ValueError, match=message):
        window_at(jnp.zeros((B, 8, C)), jnp.array(offset), width)
