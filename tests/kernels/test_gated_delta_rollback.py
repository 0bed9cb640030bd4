"""The two ways back to an accepted length agree: snapshots, and records with a commit."""

import functools

import jax
import numpy as np
import pytest
from gated_delta_cases import ROUNDING, draw, law, rms_error
from lowering import here

from pallas_kernels import gated_delta
from pallas_kernels.gated_delta import pallas_tpu_verify, reference
from pallas_kernels.gated_delta.config import TpuConfig

SERIAL = ("cpu_native", "xla_recurrent", "pallas_tpu_interpret", "pallas_gpu_interpret", "triton_interpret")
"""Implementations whose three operations compute a token in the same order of operations."""


def expect_commit_to_equal_every_snapshot(n_tokens, head_map, impl, compiler_options=None):
    verify, verify_snapshots, commit = (
        jax.jit(functools.partial(function, impl=impl, head_map=head_map), compiler_options=compiler_options)
        for function in (gated_delta.verify, gated_delta.verify_snapshots, gated_delta.commit)
    )
    inputs = type(draw())(*(x[:1] for x in draw().first(n_tokens)))
    _, records = verify(*inputs)
    slots = np.broadcast_to(inputs.state[:, None], (1, n_tokens, *inputs.state.shape[1:]))
    _, slots = verify_snapshots(*inputs[:5], slots, np.array([n_tokens - 1]))
    lengths = np.arange(n_tokens + 1)
    repeated = jax.tree.map(lambda x: np.repeat(x, n_tokens + 1, axis=0), (inputs.state, records))
    np.testing.assert_array_equal(commit(*repeated, lengths), [inputs.state[0], *np.asarray(slots)[0, ::-1]])


@pytest.mark.parametrize("impl", here(SERIAL))
@pytest.mark.parametrize(
    ("n_tokens", "head_map"), [(1, "tiled"), (4, "grouped"), pytest.param(16, "tiled", marks=pytest.mark.slow)]
)
def test_commit_of_serial_records_equals_every_snapshot_bit_for_bit(n_tokens, head_map, impl):
    expect_commit_to_equal_every_snapshot(n_tokens, head_map, impl)


@pytest.mark.parametrize(("n_tokens", "head_map"), [(1, "tiled"), (4, "grouped"), (16, "tiled")])
def test_commit_equals_every_snapshot_in_programs_that_llvm_optimises_too(n_tokens, head_map):
    """The suite turns LLVM's optimiser off, which fuses multiplications with additions; 3 is the level users run at.

    Only programs for CPUs are held to that: what an interpreter makes of a kernel says nothing of a device's compiler.
    """
    options = {"xla_backend_optimization_level": 3}
    expect_commit_to_equal_every_snapshot(n_tokens, head_map, "xla_recurrent", options)


def test_rows_that_keep_no_token_stay_as_they_are_between_others():
    """With several blocks of heads for a row, so that the TPU kernel must stay at one of another row."""
    inputs = draw(n_rows=3).first(2)
    commit = functools.partial(pallas_tpu_verify.commit, head_map="tiled", interpret=True, config=TpuConfig(1))
    run, law_of = jax.jit(commit), jax.jit(functools.partial(reference.commit, head_map="tiled"))
    for n in ([0, 0, 0], [0, 0, 2], [2, 0, 1], [0, 2, 0]):
        kept = np.arange(2) < np.array(n)[:, None]
        parts = (x * kept.reshape(3, 2, *[1] * (x.ndim - 2)) for x in (inputs.k, inputs.v, inputs.g))
        given = gated_delta.Records(*parts), inputs.state, np.array(n)
        got, expected = np.asarray(run(*given)), np.asarray(law_of(*given))
        for row in range(3):
            if n[row]:
                assert rms_error(got[row], expected[row]) < ROUNDING["float32"]
            else:
                np.testing.assert_array_equal(got[row], inputs.state[row])


@pytest.mark.parametrize("head_map", ["tiled", "grouped"])
def test_commit_of_one_read_records_equals_the_law_for_every_ragged_length(head_map):
    inputs = draw().first(16)
    _, records = jax.jit(functools.partial(gated_delta.verify, head_map=head_map))(*inputs)
    commit = jax.jit(functools.partial(gated_delta.commit, head_map=head_map))
    states = [inputs.state, *law(head_map=head_map).states]
    for n in range(17):
        state = commit(inputs.state, records, np.array([n, 16 - n]))
        assert rms_error(state[0], states[n][0]) < ROUNDING["float32"]
        assert rms_error(state[1], states[16 - n][1]) < ROUNDING["float32"]


def test_rounds_of_verify_and_commit_equal_one_prefill():
    inputs = draw().first(24)
    verify, commit = jax.jit(gated_delta.verify), jax.jit(gated_delta.commit)
    state, position = inputs.state, 0
    for accepted in (1, 4, 2, 4, 3):
        window = (x[:, position : position + 4] for x in inputs[:5])
        _, records = verify(*window, state)
        state = commit(state, records, np.array([accepted, accepted]))
        position += accepted
    assert rms_error(state, law().states[position - 1]) < ROUNDING["float32"]


def test_commit_updates_a_donated_state_in_place():
    inputs = draw().first(4)
    records = gated_delta.Records(k=inputs.k, u=inputs.v, g=inputs.g)
    compiled = jax.jit(gated_delta.commit, donate_argnums=0).lower(inputs.state, records, np.array([2, 3])).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == inputs.state.nbytes
