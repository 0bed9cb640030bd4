"""The native CPU kernels of the gated delta rule: a state's bits do not depend on how it was reached."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_delta_cases import ROUNDING, Inputs, draw, law, rms_error

from pallas_kernels import gated_delta, native, using
from pallas_kernels.gated_delta import cpu_native, reference
from pallas_kernels.gated_delta.tokens import Tokens

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "")
OPTIONS = {"head_map": "tiled", "scale": 0.25}


wanted = jax.jit(partial(reference.prefill, **OPTIONS))


def program(operation: str, **options: object) -> Callable[..., Any]:
    """Of the test that asks for it: the instruction set is read when a program is traced."""
    function = jax.jit(partial(getattr(cpu_native, operation), **options))
    return lambda *given: jax.tree.map(np.asarray, function(*given))


def counts(*n: int) -> np.ndarray:
    return np.array(n, np.int32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("profile", ["model", "forgetting", "repeating"])
def test_states_and_outputs_have_the_same_bits_however_tokens_are_grouped(profile: str) -> None:
    inputs = draw(profile).first(16)
    prefill, verify = program("prefill", **OPTIONS), program("verify", **OPTIONS)
    commit = program("commit", head_map="tiled")
    whole, last = prefill(inputs.tokens, inputs.state, counts(16, 16))
    assert rms_error(last, law(profile).states[15]) < ROUNDING["float32"]
    verified, u = verify(inputs.tokens, inputs.state, counts(16, 16))
    np.testing.assert_array_equal(verified, whole)
    state = inputs.state
    for t in range(16):
        one = Tokens(*(x[:, t : t + 1] for x in inputs.tokens))
        out, state = prefill(one, state, counts(1, 1))
        np.testing.assert_array_equal(out[:, 0], whole[:, t])
        records = gated_delta.Records(inputs.k, u, inputs.g)
        np.testing.assert_array_equal(commit(records, inputs.state, counts(t + 1, t + 1)), state)
    np.testing.assert_array_equal(state, last)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("key_width", "value_width"), [(8, 8), (24, 20), (16, 100)])
def test_widths_that_fill_no_vector_or_tile(key_width: int, value_width: int) -> None:
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(2, 3, 5, 2, key_width)).astype(np.float32) / key_width**0.5
    v, state = (rng.normal(size=(3, *shape, value_width)).astype(np.float32) for shape in [(5, 4), (4, key_width)])
    g, beta = -rng.uniform(size=(3, 5, 4)).astype(np.float32), rng.uniform(size=(3, 5, 4)).astype(np.float32)
    tokens, n_valid = Tokens(q, k, v, g, beta), counts(5, 0, 3)
    poisoned = Tokens(*(np.where(_valid(x, n_valid), x, np.nan) for x in tokens))
    out, last = program("prefill", **OPTIONS)(poisoned, state, n_valid)
    want, want_last = wanted(tokens, state, n_valid)
    assert rms_error(out, np.asarray(want)) < ROUNDING["float32"]
    assert rms_error(last, np.asarray(want_last)) < ROUNDING["float32"]
    np.testing.assert_array_equal(last[1], state[1])
    _, u = program("verify", **OPTIONS)(poisoned, state, n_valid)
    assert not u[2, 3:].any()
    records = gated_delta.Records(poisoned.k, u, poisoned.g)
    np.testing.assert_array_equal(program("commit", head_map="tiled")(records, state, n_valid), last)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("n_slots", [1, 3, 7])
@pytest.mark.parametrize("value_width", [20, 64])
def test_snapshots_are_the_states_of_shorter_prefills_bit_for_bit(n_slots: int, value_width: int) -> None:
    """Rows of every length; the state comes from each slot in turn, also from those that are written."""
    drawn = draw(n_rows=3).first(6)
    inputs = Inputs(*drawn[:2], drawn.v[..., :value_width], *drawn[3:5], drawn.state[..., :value_width])
    slots = np.random.default_rng(5).normal(size=(3, n_slots, *inputs.state.shape[1:])).astype(np.float32)
    snapshots, prefill, verify = (program(name, **OPTIONS) for name in ("verify_snapshots", "prefill", "verify"))
    for round_number in range(7):
        n_valid = (np.array([0, 2, 6], np.int32) + round_number) % 7
        slot = (np.arange(3) + round_number) % n_slots
        start = slots[np.arange(3), slot]
        out, new = snapshots(inputs.tokens, slots, slot, n_valid)
        np.testing.assert_array_equal(out, verify(inputs.tokens, start, n_valid)[0])
        expected = slots.copy()
        for tokens in range(1, 7):
            _, states = prefill(inputs.tokens, start, np.full(3, tokens, np.int32))
            for row in range(3):
                if 0 <= (age := n_valid[row] - tokens) < n_slots:
                    expected[row, age] = states[row]
        np.testing.assert_array_equal(new, expected)
        slots = new


def _valid(x: np.ndarray, n_valid: np.ndarray) -> np.ndarray:
    return (np.arange(x.shape[1]) < n_valid[:, None]).reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def test_the_state_given_stays_as_it_was_where_it_is_needed_again() -> None:
    inputs = draw().first(3)
    state, tokens = jnp.asarray(inputs.state), inputs.tokens
    first, second = jax.jit(
        lambda state: [cpu_native.prefill(tokens, state, counts(3, 3), **OPTIONS)[1] for _ in range(2)]
    )(state)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(state, inputs.state)


def test_native_prefill_has_the_derivatives_of_the_xla_form() -> None:
    inputs = draw().first(3)

    def loss(impl: str, *arrays: jax.Array) -> jax.Array:
        out, state = gated_delta.prefill(*arrays, impl=impl)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(state))

    got, want = (
        jax.jit(jax.grad(partial(loss, impl), tuple(range(6))))(*inputs) for impl in ("cpu_native", "xla_recurrent")
    )
    for a, b in zip(got, want, strict=True):
        assert rms_error(a, np.asarray(b)) < 1e-4


def test_programs_for_other_platforms_do_without_native_kernels() -> None:
    inputs = jax.tree.map(jnp.asarray, draw().first(4))

    def step(*arrays: jax.Array) -> jax.Array:
        _, records = gated_delta.verify(*arrays)
        return gated_delta.commit(arrays[-1], records, jnp.array([2, 4]))

    with using(platform="tpu"):
        text = jax.export.export(jax.jit(step), platforms=["tpu"])(*inputs).mlir_module()
    assert "specjax_gated_delta" not in text


@pytest.mark.parametrize("small", [0, 1])
def test_results_of_other_sizes_are_refused(small: int) -> None:
    """Not written beyond."""
    inputs = draw("model").first(16)
    shapes = [jax.ShapeDtypeStruct((1,) if small == n else inputs.tokens.v.shape, jnp.float32) for n in (0, 1)]
    call = jax.ffi.ffi_call(native.target("specjax_gated_delta_verify"), shapes)
    settings = {"scale": np.float32(1), "isa": native.instruction_set(), "tiled": True}
    with pytest.raises(jax.errors.JaxRuntimeError, match="gated_delta: arrays do not fit together"):
        jax.block_until_ready(call(*inputs.tokens, inputs.state, counts(16, 16), **settings))
    state = jax.ShapeDtypeStruct((1,), jnp.float32)
    commit = jax.ffi.ffi_call(native.target("specjax_gated_delta_commit"), state)
    records = (inputs.tokens.k, inputs.tokens.v, inputs.tokens.g)
    with pytest.raises(jax.errors.JaxRuntimeError, match="gated_delta: arrays do not fit together"):
        jax.block_until_ready(commit(inputs.state, *records, counts(16, 16), isa=native.instruction_set(), tiled=True))
