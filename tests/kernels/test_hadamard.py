"""The Walsh-Hadamard transform: every form against its definition."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hadamard_cases import BOUND, CASES, draw, fitting, law, runnable
from lowering import needs_triton
from tiny_models import relative_rms

from pallas_kernels import explain
from pallas_kernels.hadamard import pallas_gpu, pallas_tpu, triton_products, walsh_hadamard, xla_matmul


@pytest.mark.parametrize(("name", "impl"), fitting())
def test_every_implementation_follows_the_law(name: str, impl: str) -> None:
    case = CASES[name]
    got = case.run(impl)
    assert got.dtype == jnp.float32
    assert relative_rms(got, case.want) < BOUND


@pytest.mark.parametrize("impl", runnable())
def test_a_vector_of_nan_stays_alone(impl: str) -> None:
    """Also where the rows are more than a block, or than the threads of a warpgroup."""
    x = draw(130, 16)
    poisoned = x.copy()
    poisoned[[1, 129]] = np.nan
    got = np.asarray(jax.jit(partial(walsh_hadamard, impl=impl))(poisoned))
    assert np.isnan(got[[1, 129]]).all()
    rest = [row for row in range(130) if row not in (1, 129)]
    assert relative_rms(got[rest], law(x[rest])) < BOUND


@pytest.mark.parametrize("impl", runnable())
def test_it_is_its_own_inverse(impl: str) -> None:
    x, transform = draw(5, 16), jax.jit(partial(walsh_hadamard, impl=impl))
    assert relative_rms(transform(transform(x)), x) < BOUND


@pytest.mark.parametrize(
    ("transform", "config"),
    [
        (xla_matmul.transform, xla_matmul.Config(8)),
        (pallas_tpu.transform, pallas_tpu.Config(16)),
        (pallas_gpu.transform, pallas_gpu.Config(8)),
    ],
)
def test_other_block_sizes_change_nothing(transform, config) -> None:
    """Two factors where the rule takes one; blocks that do not divide the rows."""
    x = draw(40, 32)
    interpret = {} if transform is xla_matmul.transform else {"interpret": True}
    got = jax.jit(lambda x: transform(x, None, None, config=config, **interpret))(x)
    assert relative_rms(got, law(x)) < BOUND


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: xla_matmul.Config(3), "block is 3; accepted: powers of two"),
        (lambda: pallas_tpu.Config(8), "rows is 8; accepted: multiples of 16"),
        (lambda: pallas_gpu.Config(256), "block is 256; accepted: powers of two up to 128"),
        (lambda: triton_products.Config(3, 4), "rows is 3; accepted: powers of two up to 128"),
    ],
)
def test_impossible_block_sizes_are_refused(config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config()


def test_widths_other_than_powers_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the last axis has 96 values; it must be a power of two"):
        walsh_hadamard(jnp.zeros((2, 96)))


def test_factors_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"walsh_hadamard: after has shape \(1,\); \[N\] is \(64,\)"):
        walsh_hadamard(jnp.zeros((2, 64)), after=jnp.ones(1))


@needs_triton
@pytest.mark.parametrize(("rows", "width"), [(5, 512), (2, 2048)])
def test_vectors_of_several_pieces_in_triton(rows: int, width: int) -> None:
    x = draw(rows, width)
    for config in (None, triton_products.Config(4, 8)):
        assert relative_rms(triton_products.transform(x, None, None, config=config, interpret=True), law(x)) < BOUND


@pytest.mark.parametrize(("impl", "most"), [("pallas_tpu", 4096), ("pallas_gpu", 4096), ("triton", 2048)])
def test_a_kernel_refuses_what_it_was_not_made_for(impl: str, most: int) -> None:
    with pytest.raises(ValueError, match=rf"hadamard: impl='{impl}' does not fit: N=8192 is over {most}"):
        walsh_hadamard(jnp.zeros((1, 8192)), impl=impl)


def test_the_choice_is_explained() -> None:
    assert "pallas_tpu            passed over: by name only" in explain("hadamard", N=128, platform="tpu")
