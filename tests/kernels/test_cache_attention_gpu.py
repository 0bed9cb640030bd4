"""Attention of few rows for GPUs since Hopper: the splits of a cache, which no test with a small one comes by."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
from cache_attention_cases import Case
from test_cache_attention import EXACT
from tiny_models import relative_rms

from pallas_kernels.cache_attention import pallas_gpu

RING = Case("bf16", "bf16", ((3, 4, 5), (96, 97, -1)), 41, heads=3, kv_heads=1, width=32, window=30)


def test_splits_with_tiles_that_no_row_sees_follow_the_law_and_rows_do_not_depend_on_each_other() -> None:
    config = pallas_gpu.Config(queries=4, slots=8, splits=3)
    run = jax.jit(partial(pallas_gpu.attend, interpret=True, config=config))
    call = RING.call(RING.poisoned())
    whole = np.asarray(run(call))
    assert relative_rms(whole, RING.want) < EXACT
    assert not whole[RING.rows < 0].any()
    # The same program: for other numbers of rows a CPU's compiler rounds sums of parts otherwise.
    alone = np.where(np.arange(RING.rows.size).reshape(RING.rows.shape) == 3, RING.rows, -1)
    np.testing.assert_array_equal(run(replace(call, positions=alone))[1, 0], whole[1, 0])


def test_block_sizes_go_by_the_model_and_the_cache_alone() -> None:
    for dims in pallas_gpu.TUNABLE.shapes:
        assert not {"B", "T"} & set(dims)
        assert pallas_gpu.heuristic(dims) in pallas_gpu.candidates(dims)
    long = {"H": 24, "G": 4, "N": 256, "S": 32768, "k_type": "bf16", "v_type": "bf16"}
    assert pallas_gpu.heuristic(long) == pallas_gpu.Config(8, 16, 33)
