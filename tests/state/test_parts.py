"""The parts of a state by themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.state import KV_TYPES, KVCache, KVTypes
from specjax.state.recurrent import DeltaInputs, SnapshotState, zeros

SIZES = {"value_heads": 2, "key_width": 4, "value_width": 4, "conv_channels": 12, "conv_width": 4}


append = jax.jit(KVCache.append)


def test_cache_writes_valid_rows_at_their_positions_and_drops_the_others() -> None:
    cache = KVCache.zeros(2, 4, 1, 1, KVTypes())
    rows = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3, 1, 1)
    positions = np.array([[0, 1, 2], [2, 3, 4]])  # the last one is past the capacity
    valid = np.array([[True, True, False], [True, True, True]])
    cache = append(cache, rows, -rows, positions, valid)
    np.testing.assert_array_equal(np.asarray(cache.keys)[:, :, 0, 0], [[1, 2, 0, 0], [0, 0, 4, 5]])
    np.testing.assert_array_equal(cache.values, -cache.keys)


@pytest.mark.parametrize("name", KV_TYPES)
def test_cache_keeps_its_types(name: str) -> None:
    cache = KVCache.zeros(1, 4, 1, 2, KVTypes(name, "f16"))
    row = np.ones((1, 1, 1, 2), np.float32)
    after = append(cache, row, row, np.zeros((1, 1), np.int32), np.ones((1, 1), bool))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), cache)


@pytest.mark.parametrize(("window", "longest_call"), [(5, 1), (5, 4), (8, 7), (4, 16)])
def test_a_ring_reads_what_a_cache_of_all_positions_reads(window: int, longest_call: int) -> None:
    """Calls of any length up to the longest, of which any part is taken back."""
    end, heads, width = 96, 1, 4
    ring = KVCache.ring(1, end, heads, width, KVTypes(), window=window, longest_call=longest_call)
    assert ring.capacity == window + longest_call
    whole = replace(KVCache.zeros(1, end, heads, width, KVTypes()), window=window)
    rng, length = np.random.default_rng(0), 0
    attend = jax.jit(partial(KVCache.attend, scale=1.0))
    while length + longest_call <= end:
        tokens = longest_call if rng.random() < 0.5 else int(rng.integers(1, longest_call + 1))
        q, k, v = rng.normal(size=(3, 1, longest_call, heads, width)).astype(np.float32)
        positions = (length + np.arange(longest_call))[None]
        valid = np.arange(longest_call)[None] < tokens
        ring, whole = (append(cache, k, v, positions, valid) for cache in (ring, whole))
        got, want = (np.asarray(attend(cache, q, positions))[0, :tokens] for cache in (ring, whole))
        np.testing.assert_allclose(got, want, atol=1e-5, err_msg=f"{tokens} tokens after {length}")
        length += int(rng.integers(1, tokens + 1))


def test_a_ring_tells_what_the_next_row_sees() -> None:
    ring = KVCache.ring(1, 96, 1, 2, KVTypes(), window=5, longest_call=3)
    for position in range(19):
        row = np.full((1, 1, 1, 2), position, np.float32)
        ring = append(ring, row, -row, np.array([[position]]), np.array([[True]]))
    keys, values = ring.contents(0, 17)  # two positions more have been written, and taken back
    np.testing.assert_array_equal(keys.positions, [13, 14, 15, 16])  # the row at 17 sees itself and four more
    np.testing.assert_array_equal(keys.slots, [5, 6, 7, 0])
    np.testing.assert_array_equal(keys.rows[:, 0, 0], keys.positions)
    np.testing.assert_array_equal(values.rows, -keys.rows)
    assert (keys.name, values.name) == ("keys", "values")


def test_recurrent_state_is_float32_and_starts_from_zeros() -> None:
    for strategy in ("replay", "snapshot"):
        state = zeros(strategy, batch=3, rows=4, **SIZES)
        for part, shape in ((state.matrix_state(), (3, 2, 4, 4)), (state.conv_window(), (3, 3, 12))):
            assert part.shape == shape
            assert part.dtype == jnp.float32
            assert not part.any()


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="'rewind' is unknown; known are 'replay' and 'snapshot'"):
        zeros("rewind", batch=1, rows=1, **SIZES)  # type: ignore[arg-type]


def test_a_window_of_more_tokens_than_snapshot_slots_is_refused() -> None:
    state = zeros("snapshot", batch=1, rows=2, **SIZES)
    assert isinstance(state, SnapshotState)
    key, value, gate = jnp.zeros((1, 3, 2, 4)), jnp.zeros((1, 3, 2, 4)), jnp.zeros((1, 3, 2))
    with pytest.raises(ValueError, match="3 tokens needs 3 snapshot slots; this state has 2"):
        state.verify(DeltaInputs(key, key, value, gate, gate), jnp.zeros((1, 6, 12)), jnp.array([3]))
