"""Quantized KV caches by themselves: rings, shifts, and what a sequence takes."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import relative_rms

from specjax.layers.rope import rope_frequencies
from specjax.state import KVCache, KVTypes, Shift
from specjax.state.rotation import apply_rope

TYPES = KVTypes("q8_0", "turbo3")
WIDTH, LENGTH = 64, 20


def random(tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, tokens, 2, WIDTH)).astype(np.float32)


@partial(jax.jit, static_argnames="call")
def filled(cache: KVCache, k: jax.Array, v: jax.Array, call: int) -> KVCache:
    """The cache after calls of `call` tokens."""
    for start in range(0, k.shape[1], call):
        positions = jnp.broadcast_to(start + jnp.arange(call), (2, call))
        cache = cache.append(k[:, start : start + call], v[:, start : start + call], positions, positions >= 0)
    return cache


def test_what_a_row_becomes_does_not_depend_on_the_call_it_came_in() -> None:
    empty, k, v = KVCache.zeros(2, 32, 2, WIDTH, TYPES), random(LENGTH, 0), random(LENGTH, 1)
    jax.tree.map(np.testing.assert_array_equal, filled(empty, k, v, 5), filled(empty, k, v, LENGTH))


def test_a_ring_holds_the_last_tokens() -> None:
    ring = KVCache.ring(2, 32, 2, WIDTH, TYPES, window=6, longest_call=5)
    assert ring.capacity == 11
    k, v = random(LENGTH, 0), random(LENGTH, 1)
    after = filled(ring, k, v, 5)
    last = np.arange(LENGTH - 11, LENGTH)
    keys, values = jax.device_get(jax.jit(lambda cache: (cache.keys, cache.values))(after))
    assert relative_rms(keys[:, last % 11], k[:, last]) < 0.01
    assert relative_rms(values[:, last % 11], v[:, last]) < 0.2


def test_a_shift_moves_values_as_they_are_and_encodes_moved_keys_anew() -> None:
    frequencies = rope_frequencies(1e4, WIDTH)
    empty = KVCache.zeros(2, 32, 2, WIDTH, TYPES, frequencies)
    cache = filled(empty, random(LENGTH, 0), random(LENGTH, 1), LENGTH)
    shift = Shift(keep=jnp.array([3, 3]), drop=jnp.array([5, 0]), length=jnp.array([LENGTH, LENGTH]))
    after, cache = jax.device_get((jax.jit(lambda cache: cache.shift(shift))(cache), cache))
    for part in ("codes", "scales"):
        for store, before in ((after.k, cache.k), (after.v, cache.v)):
            np.testing.assert_array_equal(store.parts[part][1], before.parts[part][1])
            np.testing.assert_array_equal(store.parts[part][0, :3], before.parts[part][0, :3])
        np.testing.assert_array_equal(after.v.parts[part][0, 3:15], cache.v.parts[part][0, 8:LENGTH])
    want = apply_rope(cache.keys[:, 8:LENGTH], np.full((2, 12), -5), frequencies)
    assert relative_rms(np.asarray(after.keys)[0, 3:15], np.asarray(want)[0]) < 0.01


def test_training_differentiates_through_an_f32_cache() -> None:
    """Keys and values are written to a cache and read again: what they were made of must learn from that."""

    def attended(k: jax.Array, v: jax.Array) -> jax.Array:
        positions = jnp.arange(5)[None]
        cache = KVCache.zeros(1, 8, 2, 16, KVTypes()).append(k, v, positions, positions >= 0)
        return jnp.sum(jnp.sin(cache.attend(jnp.ones((1, 5, 4, 16)), positions, scale=0.3)))

    def plain(k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("btgn->btg", k)[0] * 0.3
        seen = jnp.arange(5)[:, None] >= jnp.arange(5)
        weights = jax.nn.softmax(jnp.where(seen[..., None], scores[None], -jnp.inf), axis=1)
        return 2 * jnp.sum(jnp.sin(jnp.einsum("tsg,sgn->tgn", weights, v[0])))

    k, v = np.random.default_rng(0).normal(size=(2, 1, 5, 2, 16)).astype(np.float32)
    for got, want in zip(*(jax.jit(jax.grad(f, (0, 1)))(k, v) for f in (attended, plain)), strict=True):
        assert relative_rms(got, want) < 1e-5


def test_unknown_types_are_named() -> None:
    with pytest.raises(ValueError, match="KV type 'q3' is not known; known are f32, f16, bf16, q8_0, q4_0, turbo2"):
        KVTypes("f32", "q3")
