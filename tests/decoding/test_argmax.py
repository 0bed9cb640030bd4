"""The index of the largest value is that of numpy in every case."""

import jax
import numpy as np
import pytest

from specjax.decoding.argmax import argmax


@pytest.mark.parametrize("size", [7, 48, 512, 1000, 1187 * 128])
def test_the_first_of_the_largest_is_named(size: int) -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=size), rng.integers(0, 3, size), np.zeros(size), np.full(size, -np.inf)])
    x = x.astype(np.float32)
    np.testing.assert_array_equal(jax.jit(argmax)(x), x.argmax(axis=-1))
    np.testing.assert_array_equal(jax.jit(argmax)(x.reshape(2, 2, size)), x.argmax(axis=-1).reshape(2, 2))


@pytest.mark.parametrize("size", [7, 512])
def test_a_nan_is_named_before_any_number(size: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    x[0, 5] = x[1, size - 2] = x[1, size - 1] = np.nan
    np.testing.assert_array_equal(jax.jit(argmax)(x), x.argmax(axis=-1))
