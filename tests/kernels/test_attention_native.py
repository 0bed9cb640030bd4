"""The native attention kernels hide nothing that is broken."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import native
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.verify_attention import attend

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "")
B, T, H, G, N, S = 1, 2, 4, 2, 32, 300
run = partial(attend, scale=N**-0.5, impl="cpu_native")


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_broken_and_seen_reaches_the_result_and_nothing_else(broken: float) -> None:
    q, k, v = draw(B, T, H, N), draw(B, S, G, N), draw(B, S, G, N)
    positions = jnp.asarray([[270, 290]])
    whole = np.asarray(run(q, KVStore.of(k, "f32"), KVStore.of(v, "f32"), positions))
    assert np.isfinite(whole).all()

    k_broken = k.copy()
    k_broken[0, 280, 1] = broken * np.sign(q[0, 1, 2])  # only the second row sees it
    got = np.asarray(run(q, KVStore.of(k_broken, "f32"), KVStore.of(v, "f32"), positions))
    assert np.isnan(got[0, 1, 2]).all()
    np.testing.assert_array_equal(got[:, 0], whole[:, 0])
    np.testing.assert_array_equal(got[:, 1, :2], whole[:, 1, :2])

    q_broken = q.copy()
    q_broken[0, 0, 3, 5] = np.nan
    got = np.asarray(run(q_broken, KVStore.of(k, "f32"), KVStore.of(v, "f32"), positions))
    assert np.isnan(got[0, 0, 3]).all()
    np.testing.assert_array_equal(got[0, 0, :3], whole[0, 0, :3])
    np.testing.assert_array_equal(got[0, 1], whole[0, 1])
