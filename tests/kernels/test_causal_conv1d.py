"""The causal convolution keeps its law, and its window moves by exactly the accepted tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from causal_conv1d_cases import CASES, ROUNDING, B, C, Case, W, error, runnable
from lowering import needs_triton

from pallas_kernels import explain
from pallas_kernels.causal_conv1d import causal_conv1d, pallas_gpu, pallas_tpu, triton_taps, window_at

NAMES = runnable()


def draw(n_tokens):
    return Case(n_tokens).arguments


def check_nothing_comes_of(shape, impl):
    window = np.ones((shape[0], W - 1, C), np.float32)
    out, inputs = causal_conv1d(np.ones(shape, np.float32), np.ones((C, W), np.float32), window, impl=impl)
    assert out.shape == shape
    np.testing.assert_array_equal(inputs, np.concatenate([window, np.ones(shape)], axis=1))


@pytest.mark.parametrize("impl", NAMES)
def test_no_rows_are_nothing(impl):
    check_nothing_comes_of((0, 3, C), impl)


@pytest.mark.parametrize("impl", [None, "reference"])
def test_no_tokens_are_nothing(impl):
    check_nothing_comes_of((B, 0, C), impl)


@pytest.mark.parametrize("impl", NAMES)
@pytest.mark.parametrize("name", CASES)
def test_every_implementation_follows_the_law(name, impl):
    case = CASES[name]
    out, inputs = case.run(impl)
    assert out.dtype == case.dtype
    assert error(out, case.want) < ROUNDING[case.dtype]
    np.testing.assert_array_equal(inputs, case.inputs)


@pytest.mark.parametrize(
    ("kernel", "config", "n_tokens"),
    [
        (pallas_tpu, pallas_tpu.Config(tokens=16, channels=128), 35),
        (pallas_gpu, pallas_gpu.Config(per_thread=2, tokens=4), 9),
        pytest.param(triton_taps, triton_taps.Config(tokens=4, channels=64, warps=2), 9, marks=needs_triton),
    ],
)
def test_blocks_of_tokens_meet_without_a_seam(kernel, config, n_tokens):
    """The last block is not a whole one; a thread takes no more channels than there are."""
    case, options = Case(n_tokens), {"activation": "silu", "dtype": jnp.float32, "interpret": True}
    got = jax.jit(partial(kernel.convolve, config=config, **options))(case.inputs, case.arguments[1])
    assert error(got, case.want) < ROUNDING["float32"]


@pytest.mark.parametrize("impl", NAMES)
def test_what_comes_later_is_not_seen(impl):
    x, weight, window = draw(9)
    poisoned = x.copy()
    poisoned[0, 2:], poisoned[1, :] = np.nan, np.nan
    out, _ = causal_conv1d(poisoned, weight, window, impl=impl)
    assert error(out[0, :2], Case(9).want[0, :2]) < ROUNDING["float32"]
    assert np.isnan(np.asarray(out)[1]).all()


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
        ({"x": np.zeros((B, C), np.float32)}, r"x has shape \(2, 128\); accepted: \[B T C\]"),
        ({"weight": np.zeros((W, C), np.float32)}, r"weight has shape \(4, 128\); \[C W\] with x \(2, 5, 128\)"),
        ({"window": np.zeros((B, W, C), np.float32)}, r"window has shape \(2, 4, 128\); \[B W-1 C\] is \(2, 3, 128\)"),
        ({"window": [[0.0]]}, r"window is of type list; accepted: an array \[B W-1 C\]"),
        ({"weight": np.zeros((C, 0), np.float32)}, r"weight has shape \(128, 0\); no axis of \[C W\] may be empty"),
        ({"activation": "gelu"}, r"activation is 'gelu'; accepted: 'silu', None"),
        ({"weight": np.zeros((C, W), int)}, r"weight is int64; accepted: float32, bfloat16, float16"),
        ({"impl": "fast"}, r"impl='fast' is not known.*xla_shifted, .*reference"),
    ],
)
def test_a_bad_argument_is_named(changed, message):
    x, weight, window = draw(5)
    with pytest.raises(ValueError, match=rf"causal_conv1d: {message}"):
        causal_conv1d(**{"x": x, "weight": weight, "window": window, **changed})


@pytest.mark.parametrize(
    ("impl", "n_channels", "width", "message"),
    [
        ("pallas_tpu", 128, 18, "W=18 is over 17"),
        ("pallas_gpu", 128, 17, "W=17 is over 16"),
        ("pallas_gpu", 96, 4, "C=96 is not a multiple of 128"),
        ("triton", 128, 17, "W=17 is over 16"),
    ],
)
def test_a_kernel_refuses_what_it_was_not_made_for(impl, n_channels, width, message):
    x, weight, window = (
        jnp.zeros(shape) for shape in ((1, 2, n_channels), (n_channels, width), (1, width - 1, n_channels))
    )
    with pytest.raises(ValueError, match=f"causal_conv1d: impl='{impl}' does not fit: {message}"):
        causal_conv1d(x, weight, window, impl=impl)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: pallas_tpu.Config(8, 128), "tokens is 8; accepted: multiples of 16"),
        (lambda: pallas_tpu.Config(16, 64), "channels is 64; accepted: multiples of 128"),
        (lambda: pallas_tpu.Config(1024, 512), r"tokens \* channels is 524288; accepted: up to 262144"),
        (lambda: pallas_gpu.Config(3, 1), "per_thread is 3; accepted: 1, 2, 4"),
        (lambda: pallas_gpu.Config(1, 65), "tokens is 65; accepted: 1 to 64"),
        (lambda: triton_taps.Config(3, 128, 4), "tokens is 3; accepted: powers of two up to 64"),
    ],
)
def test_impossible_block_sizes_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config()


def test_the_choice_is_explained():
    text = explain("causal_conv1d", platform="gpu", T=4, C=96, W=4)
    assert "xla_shifted           chosen" in text
    assert "pallas_gpu            passed over: by name only" in text


@pytest.mark.parametrize(
    ("offset", "width", "message"),
    [([0, 0], 9, r"width is 9; inputs \(2, 8, 128\)"), ([0], 3, r"offset has shape \(1,\); \[B\] is \(2,\)")],
)
def test_a_bad_window_is_named(offset, width, message):
    with pytest.raises(ValueError, match=message):
        window_at(jnp.zeros((B, 8, C)), jnp.array(offset), width)
