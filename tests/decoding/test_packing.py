"""Records as one array for each dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.packing import Packing

RNG = np.random.default_rng(0)
ROUNDS, ROWS = 3, 2


def tree() -> dict:
    """Some leaves of one dtype, one without any values, one of several axes, and one that is missing."""
    return {
        "tokens": jnp.asarray(RNG.integers(0, 99, (ROWS, 4)), jnp.int32),
        "drafts": jnp.zeros((ROWS, 0), jnp.int32),
        "count": jnp.asarray(RNG.integers(0, 99, (ROWS,)), jnp.int32),
        "ended": jnp.asarray(RNG.random(ROWS) < 0.5),
        "top": (jnp.asarray(RNG.random((ROWS, 4, 5)), jnp.float32), None),
        "norm": jnp.asarray(RNG.random(ROWS), jnp.float32),
    }


def test_what_was_packed_comes_back() -> None:
    trees = [tree() for _ in range(ROUNDS)]
    packing = Packing(jax.eval_shape(lambda: trees[0]))
    packed = [packing.packed(each) for each in trees]
    assert {name: array.shape for name, array in packed[0].items()} == {
        "int32": (ROWS, 5),
        "bool": (ROWS, 1),
        "float32": (ROWS, 21),
    }
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *packed)
    expected = jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)
    jax.tree.map(np.testing.assert_array_equal, packing.unpacked(stacked), expected)
    assert jax.tree.map(lambda x: x.dtype, packing.unpacked(stacked)) == jax.tree.map(lambda x: x.dtype, expected)
