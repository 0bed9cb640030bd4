"""The two ways back to an accepted length agree: snapshots, and records with a commit."""

import functools
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from gated_delta_cases import ROUNDING, draw, law, rms_error

from pallas_kernels import gated_delta


@functools.cache
def snapshots(n_tokens: int) -> np.ndarray:
    """[T, B, ...]: the state after 1 .. T tokens."""
    inputs = draw().first(n_tokens)
    slots = np.broadcast_to(inputs.state[:, None], (2, n_tokens, *inputs.state.shape[1:]))
    slots = jax.jit(gated_delta.verify_snapshots)(*inputs[:5], slots, np.array([0, n_tokens - 1]))[1]
    return np.moveaxis(np.asarray(slots), 1, 0)[::-1]


@pytest.mark.parametrize("n_tokens", [1, 2, 4, 16])
def test_commit_of_serial_records_equals_every_snapshot_bit_for_bit(n_tokens):
    inputs = draw().first(n_tokens)
    _, records = jax.jit(functools.partial(gated_delta.verify, impl="xla_recurrent"))(*inputs)
    commit = jax.jit(gated_delta.commit)
    np.testing.assert_array_equal(commit(inputs.state, records, np.array([0, 0])), inputs.state)
    for n in range(1, n_tokens + 1):
        np.testing.assert_array_equal(commit(inputs.state, records, np.array([n, n])), snapshots(n_tokens)[n - 1])


def test_commit_equals_every_snapshot_in_programs_that_llvm_optimises_too():
    """The suite turns LLVM's optimiser off, which fuses multiplications with additions; 3 is the level users run at."""
    check = test_commit_of_serial_records_equals_every_snapshot_bit_for_bit.__name__
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{check}"],
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


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
