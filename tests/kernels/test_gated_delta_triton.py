"""The Triton kernels at widths that are no powers of two, whatever the block sizes."""

from functools import partial

import jax
import numpy as np
import pytest
from gated_delta_cases import ROUNDING, Inputs, rms_error
from lowering import lowered, needs_jax_triton, needs_triton, triton_calls

from pallas_kernels import gated_delta, triton_launch
from pallas_kernels.gated_delta import Records, reference, triton_recurrence
from pallas_kernels.gated_delta.triton_recurrence import Config, candidates, heuristic, unfit

B, T, HK, HV, DK, DV = 2, 3, 1, 3, 24, 40
N_VALID = np.array([3, 1])


def inputs() -> Inputs:
    rng = np.random.default_rng(3)
    q, k, v, state = (rng.normal(size=(B, *of)) for of in ((T, HK, DK), (T, HK, DK), (T, HV, DV), (HV, DK, DV)))
    g, beta = -np.exp(rng.normal(size=(B, T, HV))), rng.uniform(size=(B, T, HV))
    return Inputs(*(x.astype(np.float32) for x in (q / DK, k / DK**0.5, v, g, beta, state)))


@needs_triton
@pytest.mark.parametrize("config", [Config(8, 1), Config(16, 1), Config(64, 4)], ids=str)
def test_any_width_in_any_blocks(config: Config) -> None:
    drawn, options = inputs(), {"head_map": "grouped"}
    given = drawn.tokens, drawn.state, N_VALID
    out, u = jax.jit(partial(triton_recurrence.verify, scale=0.5, interpret=True, config=config, **options))(*given)
    want_out, want_u = reference.verify(*given, scale=0.5, **options)
    assert rms_error(out, want_out) < ROUNDING["float32"]
    assert rms_error(u, want_u) < ROUNDING["float32"]
    final = jax.jit(partial(triton_recurrence.prefill, scale=0.5, interpret=True, config=config, **options))(*given)
    for got, want in zip(final, reference.prefill(*given, scale=0.5, **options), strict=True):
        assert rms_error(got, want) < ROUNDING["float32"]
    records, state = Records(drawn.k, u, drawn.g), jax.numpy.asarray(drawn.state)
    new = triton_recurrence.commit(records, state, N_VALID, interpret=True, config=config, **options)
    want = reference.commit(records._replace(u=want_u), state, N_VALID, **options)
    assert rms_error(new, want) < ROUNDING["float32"]


@needs_triton
def test_counts_and_slots_out_of_range_are_the_nearest_in_range() -> None:
    tokens, state = inputs().tokens, inputs().state
    slots, options = np.stack([state, 2 * state], axis=1), {"head_map": "grouped", "interpret": True}
    far, near = np.array([T + 2, -1]), np.array([T, 0])
    verify = partial(triton_recurrence.verify, tokens, state, scale=0.5, **options)
    prefill = partial(triton_recurrence.prefill, tokens, state, scale=0.5, **options)
    for run in (verify, prefill):
        for got, want in zip(run(far), run(near), strict=True):
            np.testing.assert_array_equal(got, want)
    commit = partial(triton_recurrence.commit, Records(tokens.k, tokens.v, tokens.g), state, **options)
    np.testing.assert_array_equal(commit(far), commit(near))
    run = partial(triton_recurrence.verify_snapshots, tokens, slots, scale=0.5, **options)
    for got, want in zip(run(np.array([9, -1]), far), run(np.array([1, 0]), near), strict=True):
        np.testing.assert_array_equal(got, want)


@needs_jax_triton
def test_a_scale_of_numpy_is_a_constant_of_the_program() -> None:
    run = partial(gated_delta.verify, head_map="grouped", scale=np.float32(0.5), impl="triton")
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs()]
    assert len(triton_calls(lowered(run, "cuda", *shapes))) == 1


def test_configurations_are_checked_and_cover_the_shapes_of_models() -> None:
    with pytest.raises(ValueError, match="columns is 12; accepted: 8, 16, 32, 64"):
        Config(12, 1)
    with pytest.raises(ValueError, match="warps is 8; accepted: 1, 2, 4"):
        Config(8, 8)
    for dims in triton_recurrence.SHAPES:
        assert heuristic(dims) in candidates(dims)


def test_states_that_registers_do_not_hold_are_refused() -> None:
    assert unfit({"Dk": 513, "Dv": 64}, interpreted=True) == "Dk=513 is more than 512"


@pytest.mark.skipif(not triton_launch.missing(interpreted=False), reason="Triton and jax-triton are installed")
def test_without_the_extra_a_named_kernel_says_what_to_install() -> None:
    with pytest.raises(ValueError, match=r"impl='triton' does not fit: needs the package .*specjax\[gpu-triton\]"):
        gated_delta.verify(*inputs(), impl="triton")
