"""The kernels for attention of many rows: their blocks and tiles, what they refuse, and that they lower."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cache_attention_cases import CASES, Case
from lowering import GENERATIONS, compiled_for_tpu, kernel_calls, lowered
from test_cache_attention import EXACT, ROUNDED
from tiny_models import relative_rms

from pallas_kernels import cache_attention, mosaic_gpu, using
from pallas_kernels.cache_attention import pallas_gpu_prefill as on_gpu
from pallas_kernels.cache_attention import pallas_tpu_prefill as on_tpu
from pallas_kernels.cache_attention.blocks import whole_tiles
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.visibility import as_mask
from pallas_kernels.kv_formats import KVStore


def test_blocks_of_rows_that_do_not_divide_them() -> None:
    case = CASES["a prompt and one that goes on"]
    run = partial(on_tpu.attend, interpret=True, config=on_tpu.Config(16, 128))
    assert relative_rms(jax.jit(run)(case.call(case.poisoned())), case.want) < EXACT


def test_more_steps_than_scalar_memory_has_room_for_take_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_tpu, "MOST_STEPS", 8)  # two blocks of each sequence
    case = CASES["a prompt and one that goes on"]
    run = partial(on_tpu.attend, interpret=True, config=on_tpu.Config(8, 128))
    assert relative_rms(jax.jit(run)(case.call(case.poisoned())), case.want) < EXACT


@pytest.mark.parametrize("config", [on_gpu.Config(1, 64, 1), on_gpu.Config(2, 64, 3)])
def test_the_warpgroups_of_the_gpu_kernel_wait_for_each_other(
    config: on_gpu.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    monkeypatch.setattr(mosaic_gpu, "interpreter", lambda: InterpretGPUParams(detect_races=True))
    case = Case("bf16", "bf16", (tuple(range(300, 330)),), 340, kv_heads=1)
    got = jax.jit(partial(on_gpu.attend, interpret=True, config=config))(case.call(case.poisoned()))
    assert relative_rms(got, case.wanted_from("pallas_gpu_prefill")) < ROUNDED["bfloat16"]
    assert not gpu_callbacks.get_races().races_found


@pytest.mark.parametrize("name", ["prompts in a ring", "prompts in a long cache", "a prompt and a window"])
def test_tiles_that_every_row_sees_whole_are_those_without_a_hidden_slot(name: str) -> None:
    case = CASES[name]
    present = case.rows[:1, :20]
    mask = np.asarray(as_mask(present, case.slots, case.window)).all(axis=1)
    for tile in (7, 16):
        want = [mask[:, at : at + tile].all(axis=1) & (at + tile <= case.slots) for at in range(0, case.slots, tile)]
        got = jax.jit(whole_tiles, static_argnums=(1, 2, 3))(present, tile, case.slots, case.window)
        np.testing.assert_array_equal(got, np.stack(want, axis=1))


def test_arguments_that_do_not_fit_are_refused() -> None:
    q, cache = np.zeros((1, 4, 600, 16), np.float32), KVStore.zeros((1, 8, 2, 16), "f32")
    with pytest.raises(ValueError, match="impl='pallas_tpu_prefill' does not fit: H / G = 300: made for at most 256"):
        cache_attention.attend(q, cache, cache, np.zeros((1, 4), np.int32), scale=1.0, impl="pallas_tpu_prefill")
    with pytest.raises(ValueError, match=r"cache_attention.attend: positions have shape \(1, 3\)"):
        cache_attention.attend(q, cache, cache, np.zeros((1, 3), np.int32), scale=1.0)
    with pytest.raises(ValueError, match="rows is 0; accepted: at least 1"):
        on_tpu.Config(0, 128)


def test_what_tensor_cores_do_not_have_is_refused() -> None:
    case = CASES["a prompt and one that goes on"]
    call = partial(cache_attention.attend, scale=1.0, impl="pallas_gpu_prefill")
    with pytest.raises(ValueError, match="impl='pallas_gpu_prefill' does not fit: k_type=f32: tensor cores multiply"):
        call(case.q, *case.caches, case.rows)
    q, cache = np.zeros((1, 4, 2, 1024), np.float32), KVStore.zeros((1, 8, 2, 1024), "bf16")
    with pytest.raises(ValueError, match="N=1024: queries, keys and values do not fit into 227 KiB of shared memory"):
        call(q, cache, cache, np.zeros((1, 4), np.int32))
    with pytest.raises(ValueError, match="tile is 96; accepted: 64, 128"):
        on_gpu.Config(2, 96, 2)
    case = CASES["a wide prompt"]
    config = on_gpu.Config(2, 128, 2)
    with pytest.raises(
        ValueError,
        match=r"config is Config\(warpgroups=2, tile=128, buffers=2\); accepted: what fits into 227 KiB: Config",
    ):
        on_gpu.attend(case.call(), config=config)


def test_explain_takes_sizes() -> None:
    said = cache_attention.explain(platform="tpu", T=512, H=24, G=4, N=256, S=4096, k_type="bf16", v_type="bf16")
    assert re.search(r"xla_floats +chosen", said)
    assert re.search(r"pallas_tpu_prefill +passed over: by name only", said)
    said = cache_attention.explain(platform="gpu", T=512, H=24, G=4, N=256, S=4096, k_type="f32", v_type="bf16")
    assert re.search(r"xla_floats +chosen", said)
    with using("cache_attention=pallas_gpu_prefill"):
        said = cache_attention.explain(platform="gpu", T=64, H=8, G=4, N=64, S=512, k_type="bf16", v_type="f32")
    assert re.search(r"pallas_gpu_prefill +passed over: v_type=f32: tensor cores multiply numbers of 16 bits", said)


QWEN3_6_27B = {"heads": 24, "kv_heads": 4, "width": 256, "slots": 2048}
WINDOWED = {"heads": 16, "kv_heads": 8, "width": 256, "slots": 1536, "window": 1024}
GLOBAL = {"heads": 16, "kv_heads": 2, "width": 512, "slots": 2048}


def call(impl: str, kind: str, shape: dict[str, int]) -> tuple[Any, tuple[Any, ...]]:
    """A function for 512 rows and the shapes of its arguments."""
    cache = jax.eval_shape(partial(KVStore.zeros, (1, shape["slots"], shape["kv_heads"], shape["width"]), kind))
    q = jax.ShapeDtypeStruct((1, 512, shape["heads"], shape["width"]), jnp.bfloat16)
    run = partial(cache_attention.attend, scale=0.1, window=shape.get("window"), impl=impl)
    return run, (q, cache, cache, jax.ShapeDtypeStruct((1, 512), jnp.int32))


@pytest.mark.parametrize(("impl", "platform"), [("pallas_tpu_prefill", "tpu"), ("pallas_gpu_prefill", "cuda")])
@pytest.mark.parametrize(("kind", "shape"), [("bf16", QWEN3_6_27B), ("q8_0", WINDOWED), ("bf16", GLOBAL)])
def test_the_kernels_lower(kind: str, shape: dict[str, int], impl: str, platform: str) -> None:
    run, given = call(impl, kind, shape)
    assert len(kernel_calls(lowered(run, platform, *given), platform)) == 1


@pytest.mark.parametrize(
    ("width", "halves"),
    [
        # Both narrow widths have nearly the same block sizes. Each lowers one half of them here, and all with the
        # slow tests.
        (24, {0}),
        (96, {1}),
        (512, {0, 1}),
        pytest.param(24, {0, 1}, marks=pytest.mark.slow),
        pytest.param(96, {0, 1}, marks=pytest.mark.slow),
    ],
)
def test_block_sizes_of_the_gpu_kernel_lower(width: int, halves: set[int]) -> None:
    """A half has each tile with each number of warpgroups, either with one buffer or with two."""
    sizes = {"heads": 4, "kv_heads": 2, "width": width, "slots": 300}
    _, given = call("pallas_gpu_prefill", "f16", sizes)
    dims = {"T": 512, "H": 4, "G": 2, "N": width, "S": 300, "k_type": "f16", "v_type": "f16"}
    assert on_gpu.heuristic(dims) in on_gpu.candidates(dims)
    for config in (config for config in on_gpu.candidates(dims) if config.buffers < 3):
        if (config.warpgroups + config.tile // 64 + config.buffers) % 2 not in halves:
            continue

        def run(*given: Any, config: on_gpu.Config = config) -> jax.Array:
            return on_gpu.attend(Call(*given, scale=0.1, soft_cap=30.0, sinks=jnp.zeros(4)), config=config)

        assert len(kernel_calls(lowered(run, "cuda", *given), "cuda")) == 1


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("kind", "shape"), [("bf16", QWEN3_6_27B), ("q4_0", QWEN3_6_27B), ("q8_0", WINDOWED), ("bf16", GLOBAL)]
)
def test_the_tpu_compiler_accepts_the_kernel(kind: str, shape: dict[str, int], generation: str) -> None:
    run, given = call("pallas_tpu_prefill", kind, shape)
    assert compiled_for_tpu(run, generation, *given).memory_analysis() is not None


@pytest.mark.tpu_compiler
def test_the_tpu_compiler_accepts_the_kernel_for_many_long_sequences() -> None:
    cache = jax.eval_shape(partial(KVStore.zeros, (8, 131072, 4, 256), "q4_0"))
    q, positions = jax.ShapeDtypeStruct((8, 512, 24, 256), jnp.bfloat16), jax.ShapeDtypeStruct((8, 512), jnp.int32)
    run = partial(cache_attention.attend, scale=0.1, impl="pallas_tpu_prefill")
    assert compiled_for_tpu(run, "v5e", q, cache, cache, positions).memory_analysis() is not None
