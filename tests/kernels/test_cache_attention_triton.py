"""Attention in Triton, in its interpreter, where its arithmetic is its own."""

from dataclasses import replace
from functools import partial

import jax
import pytest
from cache_attention_cases import CASES
from lowering import needs_triton
from tiny_models import relative_rms

from pallas_kernels.cache_attention import triton_splits


@needs_triton
@pytest.mark.parametrize("soft_cap", [1e-3, 0.5, 50.0, 1e6])
def test_soft_caps_of_any_size_keep_the_bits_of_scores(soft_cap: float) -> None:
    case = replace(CASES["floats"], soft_cap=soft_cap)
    got = jax.jit(partial(triton_splits.attend, interpret=True))(case.call())
    assert relative_rms(got, case.want) < 1e-4
