"""Attention of many rows: every implementation against the law, the Pallas kernel in its interpreter and lowered."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SCALE, Case
from lowering import GENERATIONS, compiled_for_tpu, kernel_calls, lowered
from tiny_models import relative_rms

from pallas_kernels import prefill_attention
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.prefill_attention import pallas_tpu
from pallas_kernels.prefill_attention.implementations import IMPLEMENTATIONS

EXACT, ROUNDED = 5e-6, 1e-2
"""Relative RMS errors: of products in float32; of products whose operands are rounded to bfloat16."""


def rows(first: int, count: int, total: int) -> tuple[int, ...]:
    """Positions of a sequence's rows, and -1 for those that are not there."""
    return (*range(first, first + count), *(-1,) * (total - count))


CASES = {
    "a prompt and one that goes on": Case("f32", "f32", (rows(0, 40, 40), rows(100, 25, 40)), 150),
    "a ring gone round": Case("q8_0", "bf16", (rows(150, 20, 20), rows(0, 20, 20)), 60, window=40),
    "capped, with sinks": Case(
        "turbo4", "turbo4", (rows(0, 18, 18),), 32, width=128, soft_cap=20.0, sinks=(1.0, -3.0, 0.0, 9.0)
    ),
}
IMPLS = [i for i in IMPLEMENTATIONS if i.name not in ("pallas_tpu", "reference")]


@pytest.mark.parametrize(
    ("name", "impl"), [(name, i.name) for name, case in CASES.items() for i in IMPLS if i.unfit(case.dims) is None]
)
def test_every_implementation_follows_the_law(name: str, impl: str) -> None:
    case = CASES[name]
    pallas = impl.startswith("pallas")
    attend = partial(prefill_attention.attend, scale=SCALE, impl=impl, **case.options)
    got = np.asarray(jax.jit(attend)(case.q, *(case.poisoned() if pallas else case.caches), case.rows))
    sees = case.rows >= 0
    assert relative_rms(got[sees], case.want[sees]) < (ROUNDED if pallas and case.k_type != "f32" else EXACT)
    assert np.isfinite(got).all()


def test_the_reference_is_the_law() -> None:
    case = CASES["capped, with sinks"]
    got = prefill_attention.attend(case.q, *case.caches, case.rows, scale=SCALE, impl="reference", **case.options)
    assert relative_rms(got, case.want) < EXACT


def test_blocks_of_rows_that_do_not_divide_them() -> None:
    case = CASES["a prompt and one that goes on"]
    run = partial(pallas_tpu.attend, scale=SCALE, interpret=True, config=pallas_tpu.Config(16, 128), **case.options)
    assert relative_rms(jax.jit(run)(case.q, *case.poisoned(), case.rows), case.want) < EXACT


def test_arguments_that_do_not_fit_are_refused() -> None:
    q, cache = np.zeros((1, 4, 600, 16), np.float32), KVStore.zeros((1, 8, 2, 16), "f32")
    with pytest.raises(ValueError, match="impl='pallas_tpu' does not fit: H / G = 300: made for at most 256"):
        prefill_attention.attend(q, cache, cache, np.zeros((1, 4), np.int32), scale=1.0, impl="pallas_tpu")
    with pytest.raises(ValueError, match=r"prefill_attention.attend: positions have shape \(1, 3\)"):
        prefill_attention.attend(q, cache, cache, np.zeros((1, 3), np.int32), scale=1.0)
    with pytest.raises(ValueError, match="rows is 0; accepted: at least 1"):
        pallas_tpu.Config(0, 128)


def test_explain_takes_sizes() -> None:
    said = prefill_attention.explain(platform="tpu", T=512, H=24, G=4, N=256, S=4096, k_type="bf16", v_type="bf16")
    assert "xla_floats            chosen" in said
    assert "pallas_tpu            passed over: by name only" in said


QWEN3_6_27B = {"heads": 24, "kv_heads": 4, "width": 256, "slots": 2048}
WINDOWED = {"heads": 16, "kv_heads": 8, "width": 256, "slots": 1536, "window": 1024}
GLOBAL = {"heads": 16, "kv_heads": 2, "width": 512, "slots": 2048}


def call(kind: str, shape: dict[str, int]) -> tuple[Any, tuple[Any, ...]]:
    """A function for 512 rows and the shapes of its arguments."""
    cache = jax.eval_shape(partial(KVStore.zeros, (1, shape["slots"], shape["kv_heads"], shape["width"]), kind))
    q = jax.ShapeDtypeStruct((1, 512, shape["heads"], shape["width"]), jnp.bfloat16)
    run = partial(prefill_attention.attend, scale=0.1, window=shape.get("window"), impl="pallas_tpu")
    return run, (q, cache, cache, jax.ShapeDtypeStruct((1, 512), jnp.int32))


@pytest.mark.parametrize(("kind", "shape"), [("bf16", QWEN3_6_27B), ("q8_0", WINDOWED), ("bf16", GLOBAL)])
def test_the_tpu_kernel_lowers(kind: str, shape: dict[str, int]) -> None:
    run, given = call(kind, shape)
    assert len(kernel_calls(lowered(run, "tpu", *given), "tpu")) == 1


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("kind", "shape"), [("bf16", QWEN3_6_27B), ("q4_0", QWEN3_6_27B), ("q8_0", WINDOWED), ("bf16", GLOBAL)]
)
def test_the_tpu_compiler_accepts_the_kernel(kind: str, shape: dict[str, int], generation: str) -> None:
    run, given = call(kind, shape)
    assert compiled_for_tpu(run, generation, *given).memory_analysis() is not None
