"""Attention of few rows for GPUs since Hopper: the splits of a cache, which no test with a small one comes by."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from cache_attention_cases import Case
from test_cache_attention import EXACT, ROUNDED
from tiny_models import relative_rms

from pallas_kernels import mosaic_gpu
from pallas_kernels.cache_attention import (
    pallas_gpu,
    pallas_gpu_prefill,
    pallas_gpu_splits,
    triton_prefill,
    triton_splits,
)
from pallas_kernels.cache_attention.blocks import Blocks

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


LONG = {
    "a cache": Case("bf16", "bf16", ((396, 397, 398, -1), (-1, -1, -1, -1), (70, 71, 72, 73)), 400, kv_heads=1),
    "a ring": Case("bf16", "f16", ((3, 4, 5, 6), (500, 501, 502, -1)), 330, heads=6, kv_heads=2, window=150),
    "more queries than a warpgroup has": Case("q8_0", "bf16", (tuple(range(190, 206)),), 260, heads=6, kv_heads=1),
}


@pytest.mark.parametrize(
    ("name", "splits"),
    [*((name, 3) for name in LONG), ("a cache", 1), pytest.param("a cache", 9, marks=pytest.mark.slow)],
)
def test_splits_on_tensor_cores_follow_the_law_rows_are_alone_and_warpgroups_wait_for_each_other(
    name: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One split has more tiles than buffers, and of nine some have none. In the ring a row is tried without others."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    monkeypatch.setattr(mosaic_gpu, "interpreter", lambda: InterpretGPUParams(detect_races=True))
    case, config = LONG[name], pallas_gpu_splits.Config(tile=64, splits=splits)
    run = jax.jit(partial(pallas_gpu_splits.attend, interpret=True, config=config))
    call = case.call(case.poisoned())
    got = np.asarray(run(call))
    sees = case.rows >= 0
    assert relative_rms(got[sees], case.wanted_from("pallas_gpu_splits")[sees]) < ROUNDED["bfloat16"]
    assert not got[~sees].any()
    if name == "a ring":
        alone = np.where(np.arange(case.rows.size).reshape(case.rows.shape) == 6, case.rows, -1)
        np.testing.assert_array_equal(run(replace(call, positions=alone))[1, 2], got[1, 2])
    assert not gpu_callbacks.get_races().races_found


@pytest.mark.parametrize(
    ("positions", "want"),
    [((300, 301), [[1, 7], [3, 8], [5]]), ((120, 131), [[1], [2], [4]]), ((-1, -1), [[], [], []])],
)
def test_each_split_has_the_same_tiles_whatever_is_seen(positions: tuple[int, int], want: list[list[int]]) -> None:
    """Twice their numbers, and one more where all rows see all of it."""
    blocks = Blocks(tokens=2, heads=1, kv_heads=1, size=2)
    tiles = jax.jit(lambda positions: blocks.tiles(positions, 64, 400, None, splits=3))
    counts, codes = map(np.asarray, tiles(np.array([positions], np.int32)))
    assert [codes[0, 0, split, :count].tolist() for split, count in enumerate(counts[0, 0])] == want


def test_what_does_not_fit_is_refused() -> None:
    sizes = {"T": 4, "H": 24, "G": 4, "N": 256, "S": 4096, "k_type": "bf16", "v_type": "bf16"}
    assert pallas_gpu_splits.unfit(sizes) is None
    assert pallas_gpu_splits.unfit({**sizes, "T": 17}) == "T=17: made for at most 16 rows"
    assert pallas_gpu_splits.unfit({**sizes, "k_type": "f32"}) == "k_type=f32: tensor cores multiply numbers of 16 bits"
    assert pallas_gpu_splits.unfit({**sizes, "N": 1024}) == (
        "N=1024: queries, keys and values do not fit into 227 KiB of shared memory"
    )
    huge = {**sizes, "B": 8, "S": 131072, "k_type": "q8_0"}
    assert pallas_gpu_splits.unfit(huge) == "the decoded cache would take 2.0 GiB, which is over 1"
    many = {**sizes, "B": 64, "S": 32768}
    assert pallas_gpu_splits.unfit(many) == "what the splits have would take 528 MiB, which is over 256"
    assert pallas_gpu.unfit({**many, "T": 16}) == "what the splits have would take 3168 MiB, which is over 2048"
    assert triton_splits.unfit({**many, "B": 128, "T": 16}) == (
        "what the splits have would take 2592 MiB, which is over 2048"
    )
    prompts = {**sizes, "B": 128, "T": 512, "S": 131072, "v_type": "q8_0"}
    for prefill in (pallas_gpu_prefill, triton_prefill):
        assert prefill.unfit(prompts) == "the decoded cache would take 32.0 GiB, which is over 16"
    assert pallas_gpu_prefill.unfit({**prompts, "B": 64}) is None
    wide = Case("bf16", "bf16", ((3,),), 300, heads=1, kv_heads=1, width=256).call()
    with pytest.raises(ValueError, match=r"config is Config\(tile=128, splits=2\); accepted: Config\(tile=64, splits"):
        pallas_gpu_splits.attend(wide, config=pallas_gpu_splits.Config(tile=128, splits=2))


@pytest.mark.parametrize("kernel", [pallas_gpu, pallas_gpu_splits])
def test_block_sizes_go_by_the_model_and_the_cache_alone(kernel: Any) -> None:
    for dims in kernel.TUNABLE.shapes:
        assert not {"B", "T"} & set(dims)
        assert kernel.heuristic(dims) in kernel.candidates(dims)
    long = {"H": 24, "G": 4, "N": 256, "S": 32768, "k_type": "bf16", "v_type": "bf16"}
    assert kernel.heuristic(long).splits == 33
