"""Attention over caches: the same calls for every implementation, the Pallas kernels in their interpreters."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from cache_attention_cases import CASES, LONG, SCALE, Case, integer_error, rounded_weights
from compiled import stored_caches
from lowering import here, needs_triton
from tiny_models import relative_rms

from pallas_kernels import cache_attention, native, triton_launch, using
from pallas_kernels.cache_attention import pallas_tpu, triton_splits
from pallas_kernels.cache_attention.implementations import CACHE_ATTENTION
from pallas_kernels.cache_attention.visibility import visible_tiles
from pallas_kernels.kv_formats import KVStore

EXACT, SPLIT, ROUNDED = 5e-6, 1e-4, {"bfloat16": 2**-8, "float16": 2**-11}
"""Relative RMS errors: of products in float32; of products whose operands are two numbers of bfloat16; of weights that
are rounded, each by half of that at most, while values cancel in the sum.

Queries, keys and values that an implementation rounds are rounded for the law as well: what that does to a score grows
with the score, and no constant bounds it. In "wide", whose scores are three times as large as a model's, it is 2e-2 of
the result.
"""
READS_ALL = [each.name for each in CACHE_ATTENTION.implementations if each.reads_all]
"""What multiplies what no row sees with zero, too. The others read nothing of it."""


def bound(impl: str, case: Case, exact: float = EXACT) -> float:
    weights = rounded_weights(impl, case.v_type)
    if impl == "cpu_native":
        return max(exact, integer_error(case.k_type, case.v_type))
    if weights is None:
        return SPLIT if impl.startswith("triton") else exact
    return ROUNDED[weights]


LONG_TO_INTERPRET = ("prompts in a long cache", "a wide prompt")


HELD_BY_OTHERS = {
    # Of these both types, the width, and each option are those of other cases.
    "pallas_tpu_interpret": ("many heads", "two bits and floats", "narrow", "no power of two"),
    # Reads floats alone, of caches that are decoded as for `xla_decoded`; long ones are in test_cache_attention_gpu.py.
    "pallas_gpu_splits_interpret": (
        *("a window in a long cache", "capped", "two bits", "many heads", "two bits and floats", "narrow"),
    ),
}


def slowly_interpreted(name: str, impl: str) -> list[Any]:
    """Kernels for prompts take up to a minute of their interpreters; for few rows there are others."""
    few = len(CASES[name].positions[0]) < 9 or name == "sixteen rows"
    slow = impl.endswith("prefill_interpret") if few else impl.startswith("pallas_gpu") and name in LONG_TO_INTERPRET
    return [pytest.mark.slow] if slow or name in HELD_BY_OTHERS.get(impl, ()) else []


def fitting() -> list[Any]:
    """Every case with every implementation that serves it on a CPU."""
    names = here(CACHE_ATTENTION.names())
    unfit = {i.name: i.unfit for i in CACHE_ATTENTION.implementations}
    absent = triton_launch.missing(interpreted=True)
    return [
        pytest.param(name, *impl.values, marks=(*impl.marks, *slowly_interpreted(name, *impl.values)))
        for name, case in CASES.items()
        for impl in names
        if (reason := unfit[impl.values[0]](case.dims)) is None or (impl.marks and reason == absent)
    ]


@pytest.mark.parametrize(("name", "impl"), fitting())
def test_every_implementation_follows_the_law(name: str, impl: str) -> None:
    case = CASES[name]
    k, v = case.caches if impl in READS_ALL else case.poisoned()
    attend = partial(cache_attention.attend, scale=SCALE, impl=impl, **case.options)
    got = np.asarray(jax.jit(attend)(case.q, k, v, case.rows))
    sees = case.rows >= 0
    assert relative_rms(got[sees], case.wanted_from(impl)[sees]) < bound(impl, case)
    assert np.isfinite(got).all()
    if impl not in ("xla_floats", "xla_decoded"):
        assert not got[~sees].any(), "rows that see nothing"


@pytest.mark.parametrize("impl", here([name for name in CACHE_ATTENTION.names() if name != "xla_decoded"]))
def test_a_value_too_large_for_its_type_leaves_the_rows_before_it_alone(impl: str) -> None:
    """A draft that will be rejected must change nothing, and zero times infinity would be NaN."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in ((1, 2, 2, 64), (1, 64, 1, 64), (1, 64, 1, 64)))
    run, outs = jax.jit(partial(cache_attention.attend, scale=SCALE, impl=impl)), []
    for scale in (1, 1e6):
        v[:, 40] *= scale
        caches = stored_caches(k, v, k_type="f16", v_type="f16")
        outs.append(np.asarray(run(q, *caches, np.array([[39, 40]])))[0])
    np.testing.assert_allclose(outs[1][0], outs[0][0], rtol=1e-5, atol=1e-5)
    assert np.isfinite(outs[1]).all()
    assert np.abs(outs[1][1]).max() > 100


@pytest.mark.parametrize("impl", here(["xla_tiles", "xla_floats", "cpu_native"]))
@pytest.mark.parametrize("name", LONG)
def test_forms_for_cpus_follow_the_law_in_long_caches(name: str, impl: str) -> None:
    case = LONG[name]
    if impl == "xla_floats" and "scales" in case.caches[0].parts:
        pytest.skip("for floats")
    run = jax.jit(partial(cache_attention.attend, scale=SCALE, impl=impl, **case.options))
    got, sees = np.asarray(run(case.q, *case.caches, case.rows)), case.rows >= 0
    assert relative_rms(got[sees], case.wanted_from(impl)[sees]) < bound(impl, case, exact=1e-6)


@pytest.mark.parametrize("impl", here(["xla_tiles", "cpu_native"]))
@pytest.mark.parametrize("name", ["f32", "q8_0", "turbo3"])
def test_slots_that_no_row_sees_are_not_read(name: str, impl: str) -> None:
    case = LONG[name]
    after = np.arange(case.slots) > case.rows.max(axis=1)[:, None]
    if impl == "xla_tiles":  # reads whole tiles, up to the longest sequence's
        after = np.broadcast_to(np.arange(case.slots) >= 512 + 256, after.shape)
    part = "scales" if "scales" in case.caches[0].parts else "codes"
    spoilt = [
        replace(store, parts={**store.parts, part: np.where(after[:, :, None, None], np.nan, kept).astype(kept.dtype)})
        for store in case.caches
        for kept in (np.asarray(store.parts[part]),)
    ]
    run = jax.jit(partial(cache_attention.attend, scale=SCALE, impl=impl))
    np.testing.assert_array_equal(run(case.q, *spoilt, case.rows), run(case.q, *case.caches, case.rows))


@needs_triton
@pytest.mark.parametrize("name", ["a ring gone round", "a window in a long cache", "floats", "sixteen rows"])
def test_tiles_and_splits_of_the_triton_kernel(name: str) -> None:
    case, config = CASES[name], triton_splits.Config(rows=16, slots=16, splits=3, warps=4)
    got = jax.jit(partial(triton_splits.attend, interpret=True, config=config))(case.call(case.poisoned()))
    assert relative_rms(got, case.want) < SPLIT


@needs_triton
def test_a_row_of_the_triton_kernel_does_not_depend_on_the_others() -> None:
    case = CASES["a ring gone round"]
    run = jax.jit(partial(cache_attention.attend, scale=SCALE, impl="triton_interpret", **case.options))
    whole = run(case.q, *case.caches, case.rows)
    for t in range(case.rows.shape[1]):
        alone = run(case.q[:, t : t + 1], *case.caches, case.rows[:, t : t + 1])
        np.testing.assert_array_equal(alone[:, 0], whole[:, t])


def test_tiles_smaller_than_the_cache() -> None:
    case = CASES["a ring gone round"]
    run = jax.jit(partial(pallas_tpu.attend, interpret=True, config=pallas_tpu.Config(128)))
    assert relative_rms(run(case.call(case.poisoned())), case.wanted_from("pallas_tpu")) < ROUNDED["bfloat16"]


@pytest.mark.parametrize("name", ["a ring gone round", "a window in a long cache", "floats"])
def test_tiles_that_no_row_sees_are_those_without_a_visible_slot(name: str) -> None:
    case = CASES[name]
    for tile in (7, 64):
        want = [case.seen[:, at : at + tile].any(axis=1) for at in range(0, case.slots, tile)]
        got = jax.jit(visible_tiles, static_argnums=(1, 2, 3))(case.rows, tile, case.slots, case.window)
        np.testing.assert_array_equal(got, np.stack(want, axis=1))


def test_arguments_that_do_not_fit_are_refused() -> None:
    q, cache = np.zeros((1, 17, 4, 16), np.float32), KVStore.zeros((1, 8, 2, 16), "f32")
    rows = np.zeros((1, 17), np.int32)
    call = partial(cache_attention.attend, q, cache, cache, rows, scale=1.0)
    with pytest.raises(ValueError, match="soft_cap is -1; accepted: a number above 0, or None"):
        call(soft_cap=-1)
    with pytest.raises(ValueError, match=r"sinks have shape \(2,\); \[H\] is \(4,\)"):
        call(sinks=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="impl='pallas_tpu' does not fit: T=17: made for at most 16 rows"):
        call(impl="pallas_tpu")
    with pytest.raises(ValueError, match="impl='triton' does not fit: T=17: made for at most 16 rows"):
        call(impl="triton")
    with pytest.raises(ValueError, match=r"q is \[B, T, H, N\], k and v are \[B, S, G, N\]"):
        cache_attention.attend(q[..., :8], cache, cache, rows, scale=1.0)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 KV heads evenly"):
        cache_attention.attend(q[:, :, :3], cache, cache, rows, scale=1.0)
    with pytest.raises(ValueError, match=r"positions have shape \(1, 3\); \[B, T\] is \(1, 17\)"):
        cache_attention.attend(q, cache, cache, rows[:, :3], scale=1.0)
    with pytest.raises(ValueError, match="impl='xla_floats' does not fit: q8_0 is no float type"):
        cache_attention.attend(q, KVStore.zeros((1, 8, 2, 16), "q8_0"), cache, rows, scale=1.0, impl="xla_floats")
    with pytest.raises(ValueError, match="slots is 8; accepted: 16, 32, 64"):
        triton_splits.Config(16, 8, 1, 4)
    with pytest.raises(ValueError, match="tile is 100; accepted: multiples of 128"):
        pallas_tpu.Config(100)


@pytest.mark.skipif(not native.available(), reason=str(native.reason()))
def test_native_kernels_refuse_what_they_do_not_have() -> None:
    case = CASES["capped"]
    with pytest.raises(ValueError, match="impl='cpu_native' does not fit: has neither soft-cap nor sinks"):
        cache_attention.attend(case.q, *case.caches, case.rows, scale=SCALE, soft_cap=2.0, impl="cpu_native")


def test_explain_takes_sizes() -> None:
    sizes = {"T": 4, "H": 24, "G": 4, "N": 256, "S": 4096, "k_type": "bf16", "v_type": "q8_0"}
    lines = cache_attention.explain(platform="tpu", **sizes).splitlines()
    assert lines[0].startswith("cache_attention on tpu, T=4, H=24")
    said = dict(line.split(maxsplit=1) for line in lines[1:])
    assert said["xla_floats"] == "passed over: q8_0 is no float type"
    assert said["xla_tiles"] == "chosen"
    assert said["pallas_tpu"] == "passed over: by name only"
    said = {line.split()[0] for line in cache_attention.explain(platform="cpu", **{**sizes, "T": 17}).splitlines()}
    assert said >= {
        "cpu_native",
        "pallas_tpu",
        "pallas_tpu_prefill",
        "pallas_gpu",
        "pallas_gpu_splits",
        "pallas_gpu_prefill",
        "triton",
        "triton_prefill",
    }
    with pytest.raises(ValueError, match="missing: S; not known: X"):
        cache_attention.explain(X=1, **{name: size for name, size in sizes.items() if name != "S"})
    with pytest.raises(ValueError, match="KV type 'q5' is not known"):
        cache_attention.explain(**{**sizes, "k_type": "q5"})


@pytest.mark.parametrize(
    ("sizes", "size"),
    [
        ({"T": 4, "H": 64, "G": 64, "N": 256, "k_type": "bf16"}, 18.5),
        ({"T": 16, "H": 64, "G": 8, "N": 256, "k_type": "q8_0"}, 13.1),
    ],
)
def test_the_tpu_kernel_refuses_what_vmem_cannot_hold(sizes: dict[str, Any], size: float) -> None:
    """Many KV heads, or a copy of many queries for each group of values that has a scale; half of the heads do fit."""
    sizes = {**sizes, "v_type": sizes["k_type"], "S": 8192}
    assert pallas_tpu.unfit(sizes) == f"128 slots and the queries take {size} MiB of VMEM: made for at most 13 MiB"
    assert pallas_tpu.unfit({**sizes, "G": sizes["G"] // 2, "H": sizes["H"] // 2}) is None


def test_several_named_implementations_share_the_calls_by_rows() -> None:
    sizes = {"H": 24, "G": 4, "N": 256, "S": 4096, "k_type": "bf16", "v_type": "bf16"}
    with using("cache_attention=pallas_tpu+pallas_tpu_prefill"):
        for rows, chosen in (
            (1, "pallas_tpu"),
            (16, "pallas_tpu"),
            (17, "pallas_tpu_prefill"),
            (512, "pallas_tpu_prefill"),
        ):
            assert re.search(rf"\n  {chosen} +chosen \(using", cache_attention.explain(platform="tpu", T=rows, **sizes))
    with using("cache_attention=pallas_tpu_prefill+pallas_tpu"):  # the first that fits
        assert re.search(r"pallas_tpu_prefill +chosen", cache_attention.explain(platform="tpu", T=1, **sizes))
