"""The native attention kernels: a row depends on no other, and what is broken is not hidden."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cache_attention_cases import LONG, SCALE, Case, law
from tiny_models import relative_rms

from pallas_kernels import native
from pallas_kernels.cache_attention import attend
from pallas_kernels.kv_formats import FORMATS, KVStore
from pallas_kernels.native import library

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

    v_broken = v.copy()
    v_broken[0, 280, 1] = broken
    got = np.asarray(run(q, KVStore.of(k, "f32"), KVStore.of(v_broken, "f32"), positions))
    assert not np.isfinite(got[0, 1, 2:]).any()
    np.testing.assert_array_equal(got[:, 0], whole[:, 0])
    np.testing.assert_array_equal(got[:, 1, :2], whole[:, 1, :2])

    q_broken = q.copy()
    q_broken[0, 0, 3, 5] = np.nan
    got = np.asarray(run(q_broken, KVStore.of(k, "f32"), KVStore.of(v, "f32"), positions))
    assert np.isnan(got[0, 0, 3]).all()
    np.testing.assert_array_equal(got[0, 0, :3], whole[0, 0, :3])
    np.testing.assert_array_equal(got[0, 1], whole[0, 1])


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_the_others(name: str, isa: str) -> None:
    """Bit for bit: speculation is lossless because verifying a token gives what decoding it alone gives."""
    case, attend = LONG[name], jax.jit(partial(run, scale=SCALE))
    whole = np.asarray(attend(case.q, *case.caches, case.rows))
    assert relative_rms(whole, case.want) < (1e-4 if case.in_integers(isa) else 1e-6)
    for t in range(4):
        one = slice(t, t + 1)
        np.testing.assert_array_equal(attend(case.q[:, one], *case.caches, case.rows[:, one])[:, 0], whole[:, t])
    stores = [store.map(lambda part: part[1:2]) for store in case.caches]
    np.testing.assert_array_equal(attend(case.q[1:2, 1:3], *stores, case.rows[1:2, 1:3]), whole[1:2, 1:3])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("slots", "window"), [(150, None), (40, 24)])
def test_a_slot_of_nan_breaks_the_rows_that_see_it_alone(name: str, slots: int, window: int | None) -> None:
    """In a ring that has gone round as well, where earlier rows see the slot with what stood there before."""
    q, k, v = draw(1, 33, 4, 64), draw(1, slots, 2, 64), draw(1, slots, 2, 64)
    positions, bad = np.arange(68, 101), 90
    broken = np.arange(slots)[None, :, None, None] == bad % slots
    stores, spoilt = ([KVStore.of(np.where(b, np.nan, x), name) for x in (k, v)] for b in (False, broken))
    attend = jax.jit(partial(run, window=window))
    want = np.asarray(attend(q, *stores, positions[None]))[0]
    sees = (positions - bad) % slots <= np.minimum(positions, (window or slots) - 1)
    assert 0 < sees.sum() < len(sees)
    for given in ((spoilt[0], stores[1]), (stores[0], spoilt[1])):
        got = np.asarray(attend(q, *given, positions[None]))[0]
        np.testing.assert_array_equal(got[~sees], want[~sees])
        assert np.isnan(got[sees]).all()


@pytest.mark.parametrize(("rows", "length", "window"), [(40, 300, None), (40, 300, 24), (256, 4096, None)])
def test_a_prompt_gives_the_bits_of_its_rows_alone(rows: int, length: int, window: int | None) -> None:
    """Rows are taken in blocks, and blocks, if their caches are long, in several turns."""
    q, k, v = draw(2, rows, 8, 64), draw(2, length, 2, 64), draw(2, length, 2, 64)
    positions = np.stack([np.arange(rows), np.arange(length - rows, length)])
    positions[1, -3:] = -1  # padding
    attend = jax.jit(partial(run, window=window))
    stores = KVStore.of(k, "f32"), KVStore.of(v, "f32")
    whole = np.asarray(attend(q, *stores, positions))
    for t in (0, 15, 16, 33, rows - 1):
        one = slice(t, t + 1)
        np.testing.assert_array_equal(attend(q[:, one], *stores, positions[:, one])[:, 0], whole[:, t])


@pytest.fixture
def multiplies_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test with this runs with the instruction set whose products are of codes."""
    if "avx512vnni" not in native.instruction_sets():
        pytest.skip("others compute in floats")
    monkeypatch.setenv(library.ISA_VARIABLE, "avx512vnni")


def with_scales(store: KVStore, slot: int, head: int, value: float) -> KVStore:
    """The store, in which the scales of a vector are something else."""
    return replace(store, parts={**store.parts, "scales": store.parts["scales"].at[0, slot, head].set(value)})


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["q8_0", "turbo3"])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_scale_reaches_the_rows_that_see_it(name: str, broken: float) -> None:
    """Codes do not know NaN, but their scales do."""
    q = draw(B, T, H, N)
    stores = [KVStore.of(draw(B, S, G, N), name) for _ in range(2)]
    positions = jnp.asarray([[270, 290]])
    attend = jax.jit(partial(run))  # a function of its own, which is not compiled yet
    whole = np.asarray(attend(q, *stores, positions))
    for which in range(2):
        for slot, seen in ((250, True), (295, False)):
            spoilt = [with_scales(s, slot, 1, broken) if i == which else s for i, s in enumerate(stores)]
            got = np.asarray(attend(q, *spoilt, positions))
            assert not np.isfinite(got[:, :, 2:]).any() if seen else (got == whole).all()
            np.testing.assert_array_equal(got[:, :, :2], whole[:, :, :2])


@pytest.mark.usefixtures("multiplies_codes")
def test_products_of_codes_hide_what_only_another_row_sees() -> None:
    q = draw(B, T, H, N)
    stores = [KVStore.of(draw(B, S, G, N), "q8_0") for _ in range(2)]
    positions = jnp.asarray([[270, 290]])
    spoilt = [with_scales(store, 280, 1, np.nan) for store in stores]
    attend = jax.jit(partial(run))  # a function of its own, which is not compiled yet
    whole, got = (np.asarray(attend(q, *each, positions)) for each in (stores, spoilt))
    np.testing.assert_array_equal(got[:, 0], whole[:, 0])
    np.testing.assert_array_equal(got[:, 1, :2], whole[:, 1, :2])
    assert np.isnan(got[:, 1, 2:]).all()


@pytest.mark.usefixtures("multiplies_codes")
def test_a_negative_scale_of_values_which_no_encoder_makes_is_not_taken_for_zero() -> None:
    stores = [KVStore.of(draw(B, S, G, N), "q8_0") for _ in range(2)]
    spoilt = with_scales(stores[1], 250, 1, -0.01)
    got = np.asarray(jax.jit(partial(run))(draw(B, T, H, N), stores[0], spoilt, jnp.asarray([[270, 290]])))
    assert np.isnan(got[:, :, 2:]).all()
    assert np.isfinite(got[:, :, :2]).all()


@pytest.mark.parametrize(
    ("gain", "above", "slots"), [(1, 0, 600), (1, 8, 600), (1, 6, 200), (0.01, 0, 200), (0, 0, 40)]
)
def test_codes_are_multiplied_with_sixteen_bits(gain: float, above: float, slots: int, isa: str) -> None:
    """Where scores are those of a model, also where one slot has nearly all of the weight, or all have the same."""
    q = gain * draw(1, 2, 8, 96)
    k, v = (np.random.default_rng(i).standard_normal((1, slots, 2, 96)).astype(np.float32) for i in range(2))
    if above:
        k[0, 5] = above * 96**0.5 * q[0, 0, ::4] / (q[0, 0, ::4] ** 2).sum(axis=-1, keepdims=True)
    stores = [KVStore.of(x, "q8_0") for x in (k, v)]
    positions = np.array([[slots - 2, slots - 1]], np.int32)
    want = law(q * 96**-0.5 / SCALE, *(np.asarray(store.values()) for store in stores), positions)
    got = attend(q, *stores, positions, scale=96**-0.5, impl="cpu_native")
    assert relative_rms(got, want) < (4e-5 if isa == "avx512vnni" else 1e-6)


SHORT = Case("f32", "f32", ((5, 6, 7, 8), (36, 37, 38, 39), (-1, 0, 1, 2)), 40, width=16)


def test_native_attention_has_the_derivatives_of_the_xla_form() -> None:
    def loss(q: jax.Array, k: KVStore, impl: str) -> jax.Array:
        return jnp.sum(jnp.sin(run(q, k, SHORT.caches[1], SHORT.rows, scale=SCALE, impl=impl)))

    q, k = jnp.asarray(SHORT.q), SHORT.caches[0]
    got, want = (jax.grad(loss, (0, 1))(q, k, impl) for impl in ("cpu_native", "xla_floats"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_rms(a, b) < 1e-5


def test_programs_for_other_platforms_do_without_native_kernels() -> None:
    case = LONG["q8_0"]
    program = jax.export.export(jax.jit(partial(run, scale=SCALE)), platforms=["tpu"])
    assert "specjax_attend" not in program(case.q, *case.caches, case.rows).mlir_module()
