"""The Walsh-Hadamard transform: every form against its definition."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import relative_rms

from pallas_kernels.hadamard import walsh_hadamard
from pallas_kernels.hadamard.implementations import IMPLEMENTATIONS

NAMES = [implementation.name for implementation in IMPLEMENTATIONS]


@pytest.mark.parametrize("impl", NAMES)
@pytest.mark.parametrize("width", [1, 2, 64, 128])
def test_forms_are_the_definition(impl: str, width: int) -> None:
    x = np.random.default_rng(width).normal(size=(3, 2, width)).astype(np.float32)
    signs = [[(-1) ** (i & j).bit_count() for j in range(width)] for i in range(width)]
    want = np.einsum("...n,mn->...m", x.astype(np.float64), np.array(signs)) / np.sqrt(width)
    assert relative_rms(walsh_hadamard(jnp.asarray(x), impl=impl), want) < 1e-6


@pytest.mark.parametrize("impl", NAMES)
def test_it_is_its_own_inverse(impl: str) -> None:
    x = np.random.default_rng(0).normal(size=(5, 256)).astype(np.float32)
    twice = walsh_hadamard(walsh_hadamard(jnp.asarray(x), impl=impl), impl=impl)
    assert relative_rms(twice, x) < 1e-6


def test_widths_other_than_powers_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the last axis has 96 values; it must be a power of two"):
        walsh_hadamard(jnp.zeros((2, 96)))
