"""Attention over caches: the same calls for every implementation, the Pallas kernels in their interpreters."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from attention_cases import CASES, SCALE
from lowering import here, needs_triton
from tiny_models import relative_rms

from pallas_kernels import native, triton_launch, verify_attention
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.verify_attention import pallas_tpu, triton_splits
from pallas_kernels.verify_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.verify_attention.visibility import visible_tiles

EXACT, SPLIT, ROUNDED = 5e-6, 1e-4, 1e-2
"""Relative RMS errors: of products in float32; of products whose operands are two numbers of bfloat16, or one."""
READ_WHAT_IS_SEEN = ("cpu_native", "pallas_tpu_interpret", "pallas_gpu_interpret", "triton_interpret")


def bound(impl: str, *types: str) -> float:
    if impl == "triton_interpret":
        return SPLIT
    if impl == "xla_floats":
        return max({"f32": EXACT, "f16": 2e-3, "bf16": 2e-2}[name] for name in types)
    return ROUNDED if impl.startswith("pallas_tpu") and not {"f32", "f16"}.issuperset(types) else EXACT


def fitting() -> list[Any]:
    """Every case with every implementation that serves it on a CPU."""
    names = here([i.name for i in IMPLEMENTATIONS])
    unfit = {i.name: i.unfit for i in IMPLEMENTATIONS}
    absent = triton_launch.missing(interpreted=True)
    return [
        pytest.param(name, *impl.values, marks=impl.marks)
        for name, case in CASES.items()
        for impl in names
        if (reason := unfit[impl.values[0]](case.dims)) is None or (impl.marks and reason == absent)
    ]


@pytest.mark.parametrize(("name", "impl"), fitting())
def test_every_implementation_follows_the_law(name: str, impl: str) -> None:
    case = CASES[name]
    k, v = case.poisoned() if impl in READ_WHAT_IS_SEEN else case.caches
    attend = partial(verify_attention.attend, scale=SCALE, impl=impl, **case.options)
    got = np.asarray((attend if impl == "reference" else jax.jit(attend))(case.q, k, v, case.rows))
    sees = case.rows >= 0
    assert relative_rms(got[sees], case.want[sees]) < bound(impl, case.k_type, case.v_type)
    assert np.isfinite(got).all()
    if impl != "xla_floats":
        assert not got[~sees].any(), "rows that see nothing"


@needs_triton
@pytest.mark.parametrize("name", ["a ring gone round", "a window in a long cache", "floats", "sixteen rows"])
def test_tiles_and_splits_of_the_triton_kernel(name: str) -> None:
    case, config = CASES[name], triton_splits.Config(rows=16, slots=16, splits=3, warps=4)
    run = partial(triton_splits.attend, scale=SCALE, interpret=True, config=config, **case.options)
    got = jax.jit(run)(case.q, *case.poisoned(), case.rows)
    assert relative_rms(got, case.want) < SPLIT


@needs_triton
def test_a_row_of_the_triton_kernel_does_not_depend_on_the_others() -> None:
    case = CASES["a ring gone round"]
    run = jax.jit(partial(verify_attention.attend, scale=SCALE, impl="triton_interpret", **case.options))
    whole = run(case.q, *case.caches, case.rows)
    for t in range(case.rows.shape[1]):
        alone = run(case.q[:, t : t + 1], *case.caches, case.rows[:, t : t + 1])
        np.testing.assert_array_equal(alone[:, 0], whole[:, t])


def test_tiles_smaller_than_the_cache() -> None:
    case = CASES["a ring gone round"]
    run = partial(pallas_tpu.attend, scale=SCALE, interpret=True, config=pallas_tpu.Config(128), **case.options)
    assert relative_rms(jax.jit(run)(case.q, *case.poisoned(), case.rows), case.want) < ROUNDED


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
    call = partial(verify_attention.attend, q, cache, cache, rows, scale=1.0)
    with pytest.raises(ValueError, match="soft_cap is -1; accepted: a number above 0, or None"):
        call(soft_cap=-1)
    with pytest.raises(ValueError, match=r"sinks have shape \(2,\); \[H\] is \(4,\)"):
        call(sinks=np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="impl='pallas_tpu' does not fit: T=17: made for at most 16 rows"):
        call(impl="pallas_tpu")
    with pytest.raises(ValueError, match="impl='triton' does not fit: T=17: made for at most 16 rows"):
        call(impl="triton")
    with pytest.raises(ValueError, match="slots is 8; accepted: 16, 32, 64"):
        triton_splits.Config(16, 8, 1, 4)
    with pytest.raises(ValueError, match="tile is 100; accepted: multiples of 128"):
        pallas_tpu.Config(100)


@pytest.mark.skipif(not native.available(), reason=str(native.reason()))
def test_native_kernels_refuse_what_they_do_not_have() -> None:
    case = CASES["capped"]
    with pytest.raises(ValueError, match="impl='cpu_native' does not fit: has neither soft-cap nor sinks"):
        verify_attention.attend(case.q, *case.caches, case.rows, scale=SCALE, soft_cap=2.0, impl="cpu_native")


def test_explain_takes_sizes() -> None:
    sizes = {"T": 4, "H": 24, "G": 4, "N": 256, "S": 4096, "k_type": "bf16", "v_type": "q8_0"}
    lines = verify_attention.explain(platform="tpu", **sizes).splitlines()
    assert lines[0].startswith("verify_attention on tpu, T=4, H=24")
    said = dict(line.split(maxsplit=1) for line in lines[1:])
    assert said["xla_floats"] == "passed over: q8_0 is no float type"
    assert said["xla_tiles"] == "chosen"
    assert said["pallas_tpu"] == "passed over: by name only"
    with pytest.raises(ValueError, match="missing: S; not known: X"):
        verify_attention.explain(X=1, **{name: size for name, size in sizes.items() if name != "S"})
    with pytest.raises(ValueError, match="KV type 'q5' is not known"):
        verify_attention.explain(**{**sizes, "k_type": "q5"})


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
