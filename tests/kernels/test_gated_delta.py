"""Every implementation of the gated delta rule keeps the law."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_delta_cases import DK, HV, PROFILES, ROUNDING, draw, law, mixed, rms_error, runnable
from lowering import needs_triton

from pallas_kernels import gated_delta

CHUNK_BOUNDARIES = (1, 2, 16, 63, 64, 65, 130)
CHUNKED = [
    *(None, "xla_chunked", "pallas_tpu_interpret", "pallas_gpu_prefill_interpret"),
    pytest.param("triton_prefill_interpret", marks=needs_triton),
]
"""What is tried on long prompts: the default, which is native where it was built, XLA's form, and the kernels."""
FEW = ["pallas_gpu_interpret", pytest.param("triton_interpret", marks=needs_triton)]
"""Kernels for few final tokens."""


def but_for(impls, held):
    """Parameters of tests without those that are among others."""
    names = {getattr(each, "values", (each,))[0] for each in held}
    return [each for each in impls if each.values[0] not in names]


@functools.cache
def program(function, impl, **settings):
    """The same one for all tests: those with arguments of the same shapes compile it once."""
    return jax.jit(functools.partial(function, impl=impl, **settings))


def jitted(function, impl=None, **settings):
    """Results are numpy's."""
    run = program(function, impl, **settings)
    return lambda *given, **named: jax.tree.map(np.asarray, run(*given, **named))


def poisoned(array, n_valid):
    """The rows t >= n_valid[b] as NaN."""
    array = np.array(array)
    for row, n in enumerate(n_valid):
        array[row, n:] = np.nan
    return array


@pytest.mark.parametrize("impl", [None, "xla_chunked"])
@pytest.mark.parametrize("n_tokens", CHUNK_BOUNDARIES)
def test_prefill_equals_the_law_around_chunk_boundaries(n_tokens, impl):
    expected = law()
    out, state = jitted(gated_delta.prefill, impl)(*draw().first(n_tokens))
    assert rms_error(out, expected.out[:, :n_tokens]) < ROUNDING["float32"]
    assert rms_error(state, expected.states[n_tokens - 1]) < ROUNDING["float32"]


@pytest.mark.parametrize(
    ("impl", "head_map"),
    [
        pytest.param(*impl.values, head_map, marks=impl.marks)
        for head_map, impls in (
            ("grouped", runnable("prefill")),
            # Below, what is made for long prompts or few tokens computes with tiled heads throughout.
            ("tiled", but_for(runnable("prefill"), CHUNKED + FEW)),
        )
        for impl in impls
    ],
)
def test_prefill_implementations_equal_the_law_in_both_head_maps(impl, head_map):
    expected = law(head_map=head_map)
    out, state = jitted(gated_delta.prefill, head_map=head_map, impl=impl)(*draw().first(16))
    assert rms_error(out, expected.out[:, :16]) < ROUNDING["float32"]
    assert rms_error(state, expected.states[15]) < ROUNDING["float32"]


@pytest.mark.parametrize("impl", FEW)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_few_final_tokens_equal_the_law(dtype, impl):
    """Decays that underflow beside one key over and over, or inputs of 16 bits; one token, and rows of unequal length,
    of which one may have none.
    """
    inputs, expected = mixed(PROFILES[1:]) if dtype == "float32" else (draw(dtype=dtype), law(dtype=dtype))
    run = jitted(gated_delta.prefill, impl)
    for n_valid in ((1, 1), (5, 9), (0, 9)):
        few = inputs.first(max(n_valid))
        out, state = run(*(poisoned(x, n_valid) for x in few[:5]), few.state, n_valid=np.array(n_valid))
        for row, n in enumerate(n_valid):
            assert not np.any(out[row, n:])
            if n == 0:
                np.testing.assert_array_equal(state[row], few.state[row])
                continue
            assert rms_error(out[row, :n], expected.out[row, :n]) < ROUNDING[dtype], (n, row)
            assert rms_error(state[row], expected.states[n - 1][row]) < ROUNDING["float32"], (n, row)


@pytest.mark.parametrize("impl", CHUNKED)
def test_prefill_equals_the_law_when_forgetting_and_when_repeating(impl):
    inputs, expected = mixed(PROFILES[1:])
    out, state = jitted(gated_delta.prefill, impl)(*inputs)
    for row, profile in enumerate(PROFILES[1:]):
        # Decays of e^-300 lose digits in the running sum of g.
        assert rms_error(out[row], expected.out[row]) < 3e-5, profile
        assert rms_error(state[row], expected.states[-1][row]) < 3e-5, profile


@pytest.mark.parametrize("impl", CHUNKED)
def test_prefill_of_bfloat16_equals_the_law_on_the_same_inputs(impl):
    """Of two chunks, of which the second is not full."""
    expected = law(dtype="bfloat16")
    out, state = jitted(gated_delta.prefill, impl)(*draw(dtype="bfloat16").first(70))
    assert out.dtype == jnp.bfloat16
    assert rms_error(out, expected.out[:, :70]) < ROUNDING["bfloat16"]
    assert rms_error(state, expected.states[69]) < ROUNDING["float32"]


@pytest.mark.parametrize(
    ("impl", "n_tokens"), [*((None, n) for n in range(1, 17)), *(("xla_wy", n) for n in (1, 2, 9, 16))]
)
def test_verify_equals_the_law_for_every_length(impl, n_tokens):
    expected = law()
    out, records = jitted(gated_delta.verify, impl)(*draw().first(n_tokens))
    assert rms_error(out, expected.out[:, :n_tokens]) < ROUNDING["float32"]
    assert rms_error(records.u, expected.u[:, :n_tokens]) < ROUNDING["float32"]


@pytest.mark.parametrize("impl", runnable("verify"))
@pytest.mark.parametrize(("dtype", "head_map"), [("float32", "tiled"), ("bfloat16", "grouped")])
def test_verify_implementations_equal_the_law(impl, dtype, head_map):
    expected = law(dtype=dtype, head_map=head_map)
    out, records = jitted(gated_delta.verify, head_map=head_map, impl=impl)(*draw(dtype=dtype).first(4))
    assert rms_error(out, expected.out[:, :4]) < ROUNDING[dtype]
    assert rms_error(records.u, expected.u[:, :4]) < ROUNDING["float32"]
    assert records.k.dtype == dtype
    assert records.u.dtype == records.g.dtype == jnp.float32


@pytest.mark.parametrize("impl", runnable("commit"))
@pytest.mark.parametrize(("dtype", "head_map"), [("float32", "tiled"), ("bfloat16", "grouped")])
def test_commit_implementations_equal_the_law_and_read_no_other_record(impl, dtype, head_map):
    expected, inputs, n = law(dtype=dtype, head_map=head_map), draw(dtype=dtype).first(5), [2, 4]
    records = gated_delta.Records(*(poisoned(x, n) for x in (inputs.k, np.float32(expected.u[:, :5]), inputs.g)))
    state = jitted(gated_delta.commit, head_map=head_map, impl=impl)(inputs.state, records, np.array(n))
    for row in range(2):
        assert rms_error(state[row], expected.states[n[row] - 1][row]) < ROUNDING["float32"]


def one_token_in_interpreters_is_slow(impl):
    """Snapshots of one token are those of a commit in test_gated_delta_rollback.py, and slots are spared below."""
    slow = (pytest.mark.slow,) if impl.values[0].endswith("_interpret") else ()
    return pytest.param(*impl.values, 1, 3, "tiled", "float32", marks=(*impl.marks, *slow))


@pytest.mark.parametrize(
    ("impl", "n_tokens", "n_slots", "head_map", "dtype"),
    [
        *(one_token_in_interpreters_is_slow(impl) for impl in runnable("verify_snapshots")),
        *(
            pytest.param(*impl.values, *call, marks=impl.marks)
            for impl in runnable("verify_snapshots")
            for call in ((3, 3, "grouped", "bfloat16"), (4, 2, "tiled", "float32"))
        ),
    ],
)
def test_snapshots_equal_the_law_and_spare_other_slots(impl, n_tokens, n_slots, head_map, dtype):
    expected = law(dtype=dtype, head_map=head_map)
    inputs = draw(dtype=dtype).first(n_tokens)
    slot = np.array([n_slots - 1, 0])
    slots = np.full((2, n_slots, *inputs.state.shape[1:]), np.nan, np.float32)
    slots[[0, 1], slot] = inputs.state
    run = jitted(gated_delta.verify_snapshots, head_map=head_map, impl=impl)
    out, got = run(*inputs[:5], slots, slot)
    assert rms_error(out, expected.out[:, :n_tokens]) < ROUNDING[dtype]
    for s in range(n_slots):
        if s < n_tokens:
            assert rms_error(got[:, s], expected.states[n_tokens - 1 - s]) < ROUNDING["float32"]
        else:
            np.testing.assert_array_equal(got[:, s], slots[:, s])


@pytest.mark.parametrize("impl", CHUNKED)
def test_padding_leaves_no_trace_in_prefill_and_a_row_without_tokens_keeps_its_state(impl):
    n_valid = [0, 40, 69]
    inputs, expected = draw(n_rows=3).first(70), law(n_rows=3)
    run = jitted(gated_delta.prefill, impl)
    out, state = run(*(poisoned(x, n_valid) for x in inputs[:5]), inputs.state, n_valid=np.array(n_valid))
    np.testing.assert_array_equal(state[0], inputs.state[0])
    for row, n in enumerate(n_valid):
        assert not np.any(out[row, n:])
        if n:
            assert rms_error(out[row, :n], expected.out[row, :n]) < ROUNDING["float32"], n
            assert rms_error(state[row], expected.states[n - 1][row]) < ROUNDING["float32"], n


@pytest.mark.parametrize("impl", but_for(runnable("prefill"), CHUNKED + FEW))
def test_a_row_without_tokens_keeps_its_state_in_prefill(impl):
    inputs = draw().first(3)
    arrays = (poisoned(x, [0, 2]) for x in inputs[:5])
    out, state = jitted(gated_delta.prefill, impl)(*arrays, inputs.state, n_valid=np.array([0, 2]))
    assert not np.any(out[0])
    np.testing.assert_array_equal(state[0], inputs.state[0])
    assert rms_error(state[1], law().states[1][1]) < ROUNDING["float32"]


@pytest.mark.parametrize("impl", runnable("verify"))
def test_padding_leaves_no_trace_in_verify(impl):
    inputs = draw().first(3)
    arrays = (poisoned(x, [0, 2]) for x in inputs[:5])
    out, records = jitted(gated_delta.verify, impl)(*arrays, inputs.state, n_valid=np.array([0, 2]))
    assert rms_error(out[1, :2], law().out[1, :2]) < ROUNDING["float32"]
    assert not np.any(out[0])
    assert not np.any(out[1, 2:])
    assert not np.any(records.u[1, 2:])
    state = jitted(gated_delta.commit)(inputs.state, records, np.array([0, 2]))
    np.testing.assert_array_equal(state[0], inputs.state[0])
    assert rms_error(state[1], law().states[1][1]) < ROUNDING["float32"]


@pytest.mark.parametrize("impl", runnable("verify_snapshots"))
def test_padding_leaves_no_trace_in_snapshots(impl):
    """Row 0 has no tokens, keeps all its slots, and is read through the same slot by the next call."""
    inputs = draw().first(3)
    n_valid, slot = np.array([0, 2]), np.array([1, 2])
    slots = np.random.default_rng(5).standard_normal((2, 3, *inputs.state.shape[1:])).astype(np.float32)
    slots[[0, 1], slot] = inputs.state
    run = jitted(gated_delta.verify_snapshots, impl=impl)
    out, first = run(*(poisoned(x, n_valid) for x in inputs[:5]), slots, slot, n_valid=n_valid)
    assert rms_error(out[1, :2], law().out[1, :2]) < ROUNDING["float32"]
    assert not np.any(out[0])
    assert not np.any(out[1, 2:])
    np.testing.assert_array_equal(first[0], slots[0])
    np.testing.assert_array_equal(first[1, 2], slots[1, 2])
    assert rms_error(first[1, 1], law().states[0][1]) < ROUNDING["float32"]
    assert rms_error(first[1, 0], law().states[1][1]) < ROUNDING["float32"]
    # The second call feeds row 0 its first two tokens and row 1 its third.
    tokens = [np.stack([x[0], np.roll(x[1], -2, axis=0)]) for x in inputs[:5]]
    n_valid = np.array([2, 1])
    _, second = run(*(poisoned(x, n_valid) for x in tokens), first, np.array([1, 0]), n_valid=n_valid)
    assert rms_error(second[0, 0], law().states[1][0]) < ROUNDING["float32"]
    assert rms_error(second[1, 0], law().states[2][1]) < ROUNDING["float32"]


def test_scale_multiplies_the_output():
    inputs = draw().first(4)
    out, _ = jitted(gated_delta.verify, scale=1.0)(*inputs)
    assert rms_error(out, law().out[:, :4] * DK**0.5) < ROUNDING["float32"]


def test_value_heads_read_the_key_head_of_their_map():
    from pallas_kernels.gated_delta.heads import key_head

    assert [key_head(j, 2, HV, "tiled") for j in range(HV)] == [0, 1, 0, 1]
    assert [key_head(j, 2, HV, "grouped") for j in range(HV)] == [0, 0, 1, 1]
