"""Attention over caches: the same calls for every implementation, the Pallas kernels in their interpreters."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from attention_cases import CASES, SCALE
from tiny_models import relative_rms

from pallas_kernels import native, verify_attention
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.verify_attention import pallas_tpu
from pallas_kernels.verify_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.verify_attention.visibility import visible_tiles

EXACT, ROUNDED = 5e-6, 1e-2
"""Relative RMS errors: of products in float32; of products whose operands are rounded to bfloat16."""
READ_WHAT_IS_SEEN = ("cpu_native", "pallas_tpu_interpret", "pallas_gpu_interpret")


def bound(impl: str, *types: str) -> float:
    if impl == "xla_floats":
        return max({"f32": EXACT, "f16": 2e-3, "bf16": 2e-2}[name] for name in types)
    return ROUNDED if impl.startswith("pallas_tpu") and not {"f32", "f16"}.issuperset(types) else EXACT


def fitting() -> list[tuple[str, str]]:
    """Every case with every implementation that serves it on a CPU."""
    here = [i for i in IMPLEMENTATIONS if i.name not in ("pallas_tpu", "pallas_gpu")]
    return [(name, i.name) for name, case in CASES.items() for i in here if i.unfit(case.dims) is None]


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
        call(sinks=np.zeros(2))
    with pytest.raises(ValueError, match="impl='pallas_tpu' does not fit: T=17: made for at most 16 rows"):
        call(impl="pallas_tpu")
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
