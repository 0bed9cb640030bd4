"""The native attention kernels: a row depends on no other, and what is broken is not hidden."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cache_attention_cases import LONG, SCALE, Case, integer_error
from compiled import stored
from tiny_models import relative_rms

from pallas_kernels import native, using
from pallas_kernels.cache_attention import attend
from pallas_kernels.kv_formats import FORMATS, KVStore
from pallas_kernels.native import library

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "")
B, T, H, G, N, S = 1, 2, 4, 2, 32, 300
run = partial(attend, scale=N**-0.5, impl="cpu_native")
reference = jax.jit(partial(attend, impl="reference"), static_argnames="scale")


def program(**options: Any) -> Callable[..., np.ndarray]:
    """Of the test that asks for it: the instruction set is read when a program is traced."""
    function = jax.jit(partial(run, **options))
    return lambda *given: np.asarray(function(*given))


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_broken_and_seen_reaches_the_result_and_nothing_else(broken: float) -> None:
    q, k, v = draw(B, T, H, N), draw(B, S, G, N), draw(B, S, G, N)
    positions = np.array([[270, 290]])
    whole = np.asarray(run(q, stored(k, "f32"), stored(v, "f32"), positions))
    assert np.isfinite(whole).all()

    k_broken = k.copy()
    k_broken[0, 280, 1] = broken * np.sign(q[0, 1, 2])  # only the second row sees it
    got = np.asarray(run(q, stored(k_broken, "f32"), stored(v, "f32"), positions))
    assert np.isnan(got[0, 1, 2]).all()
    np.testing.assert_array_equal(got[:, 0], whole[:, 0])
    np.testing.assert_array_equal(got[:, 1, :2], whole[:, 1, :2])

    v_broken = v.copy()
    v_broken[0, 280, 1] = broken
    got = np.asarray(run(q, stored(k, "f32"), stored(v_broken, "f32"), positions))
    assert not np.isfinite(got[0, 1, 2:]).any()
    np.testing.assert_array_equal(got[:, 0], whole[:, 0])
    np.testing.assert_array_equal(got[:, 1, :2], whole[:, 1, :2])

    q_broken = q.copy()
    q_broken[0, 0, 3, 5] = np.nan
    got = np.asarray(run(q_broken, stored(k, "f32"), stored(v, "f32"), positions))
    assert np.isnan(got[0, 0, 3]).all()
    np.testing.assert_array_equal(got[0, 0, :3], whole[0, 0, :3])
    np.testing.assert_array_equal(got[0, 1], whole[0, 1])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("at", "seen_to"), [(255, 255), (256, 256), (256, 299)])
def test_a_score_of_minus_infinity_is_a_weight_of_zero_wherever_it_stands(at: int, seen_to: int) -> None:
    """Also where it is the only score of 256 slots that are taken together."""
    q, k, v = draw(1, 1, H, N), draw(1, S, G, N), draw(1, S, G, N)
    k[0, at, 0] = -np.inf * np.sign(q[0, 0, 0])
    q[0, 0, 1] = np.abs(q[0, 0, 1]) * np.sign(q[0, 0, 0])
    given = (q, stored(k, "f32"), stored(v, "f32"), np.array([[seen_to]]))
    got, want = np.asarray(run(*given)), np.asarray(reference(*given, scale=N**-0.5))
    assert np.isfinite(want).all()
    np.testing.assert_allclose(got, want, atol=1e-6)
    k[0, : seen_to + 1, 0] = k[0, at, 0]
    got = np.asarray(run(q, stored(k, "f32"), *given[2:]))
    assert np.isnan(got[0, 0, :2]).all(), "there is no largest score"
    assert np.isfinite(got[0, 0, 2:]).all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    """Bit for bit: speculation is lossless because verifying a token gives what decoding it alone gives."""
    case, attend = LONG[name], program(scale=SCALE)
    whole = attend(case.q, *case.caches, case.rows)
    assert relative_rms(whole, case.want) < max(1e-6, integer_error(name))
    for t in range(4):
        one = slice(t, t + 1)
        np.testing.assert_array_equal(attend(case.q[:, one], *case.caches, case.rows[:, one])[:, 0], whole[:, t])
    stores = [store.map(lambda part: np.asarray(part)[1:2]) for store in case.caches]
    np.testing.assert_array_equal(attend(case.q[1:2, 1:3], *stores, case.rows[1:2, 1:3]), whole[1:2, 1:3])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("slots", "window"), [(150, None), (40, 24)])
def test_a_slot_of_nan_breaks_the_rows_that_see_it_alone(name: str, slots: int, window: int | None) -> None:
    """In a ring that has gone round as well, where earlier rows see the slot with what stood there before."""
    q, k, v = draw(1, 33, 4, 128), draw(1, slots, 2, 128), draw(1, slots, 2, 128)
    positions, bad = np.arange(68, 101), 90
    broken = np.arange(slots)[None, :, None, None] == bad % slots
    stores, spoilt = ([stored(np.where(b, np.nan, x), name) for x in (k, v)] for b in (False, broken))
    attend = program(window=window)
    want = attend(q, *stores, positions[None])[0]
    sees = (positions - bad) % slots <= np.minimum(positions, (window or slots) - 1)
    assert 0 < sees.sum() < len(sees)
    at = np.flatnonzero(np.diff(sees))[0]
    few = slice(at, at + 2)  # of which one sees it
    for given in ((spoilt[0], stores[1]), (stores[0], spoilt[1])):
        got = attend(q, *given, positions[None])[0]
        np.testing.assert_array_equal(got[~sees], want[~sees])
        assert np.isnan(got[sees]).all()
        np.testing.assert_array_equal(attend(q[:, few], *given, positions[None, few])[0], got[few])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.quantized])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_a_scale_of_infinity_breaks_the_rows_that_see_it(name: str, part: str) -> None:
    """As the floats that it stands for: in a sum they meet zeros, and each other with another sign."""
    q, k, v = draw(1, 2, 12, 128), draw(1, 40, 2, 128), draw(1, 40, 2, 128)
    stores = {"keys": stored(k, name), "values": stored(v, name)}
    scales = np.array(stores[part].parts["scales"])
    scales[0, 20, 1] = np.inf
    spoilt = stores | {part: replace(stores[part], parts={**stores[part].parts, "scales": scales})}
    got, want = (np.asarray(run(q, *each.values(), np.array([[19, 20]]))) for each in (spoilt, stores))
    assert np.isnan(got[0, 1, 6:]).all()
    np.testing.assert_array_equal(got[:, 0], want[:, 0])
    np.testing.assert_array_equal(got[:, 1, :6], want[:, 1, :6])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.quantized])
def test_a_slot_that_takes_most_of_the_attention_leaves_the_others_theirs(name: str) -> None:
    """As the first token of a text does, whose value is small: weights are integers, and those of others are tiny."""
    q, values = draw(1, 1, 1, 128), draw(1, 250, 1, 128)
    values[0, 0] *= 0.01
    scale = 128**-0.5
    attend, v = program(scale=scale), stored(values, name)
    for ahead in (4.0, 8.0, 12.0):
        k = 0.3 * draw(1, 250, 1, 128)
        k[0, 0] += q[0, 0] * ahead / (np.sum(q**2) * scale)
        given = (q, stored(k, name), v, np.array([[249]]))
        assert relative_rms(attend(*given), reference(*given, scale=scale)) < integer_error(name), ahead


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_next_to_a_slot_with_an_ordinary_value_others_lose_as_little_as_documented(name: str) -> None:
    """The worst case: all others of a chunk have weights that just become zero, and values that point one way."""
    q, k, v = draw(1, 1, 1, 128), np.zeros((1, 600, 1, 128), np.float32), np.ones((1, 600, 1, 128), np.float32)
    k[0, 0] = q[0, 0] * 11.2 / (np.sum(q**2) * 128**-0.5)
    v[0, 0] = -1
    given, scale = (q, stored(k, name), stored(v, name), np.array([[599]])), 128**-0.5
    got, want = run(*given, scale=scale), reference(*given, scale=scale)
    assert relative_rms(got, want) < 0.004


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(
    ("name", "codes", "slots"),
    [("turbo2", 255, 32), ("turbo3", 255, 32), ("turbo4", 255, 32), ("q8_0", -128, 256), ("q4_0", 0x88, 256)],
)
def test_the_largest_sums_fit_32_bits(name: str, codes: int, slots: int) -> None:
    """As many slots as share what a weight is worth, of nothing but the largest code, or the smallest; then others.

    Queries and weights are all the same.
    """
    one = stored(np.zeros((1, 2 * slots, 1, 256), np.float32), name)
    filled = np.where(np.arange(2 * slots)[None, :, None, None] < slots, codes, 0) + np.zeros(one.parts["codes"].shape)
    full = filled.astype(one.parts["codes"].dtype)
    store = replace(one, parts={"codes": full, "scales": np.ones_like(one.parts["scales"])})
    q = np.asarray(jax.jit(partial(one.kind.unrotate, width=256))(np.ones((1, 3, 4, 256), np.float32)))
    given, scale = (q, store, store, np.full((1, 3), 2 * slots - 1)), 0.01 if name.startswith("turbo") else 1e-5
    got, want = run(*given, scale=scale), np.asarray(reference(*given, scale=scale))
    assert np.abs(want).max() > 0.1
    assert relative_rms(got, want) < integer_error(name)


def test_groups_for_whose_sums_32_bits_are_not_made_are_refused() -> None:
    store = stored(draw(1, 8, 1, 256), "turbo3")
    whole = replace(store, parts={**store.parts, "scales": np.asarray(store.parts["scales"])[..., :1]})
    with pytest.raises(jax.errors.JaxRuntimeError, match="attention: scales do not fit codes"):
        np.asarray(run(draw(1, 1, 1, 256), whole, whole, np.array([[7]])))


@pytest.mark.parametrize("name", ["f32", "f16", "q8_0", "q4_0", "turbo3"])
@pytest.mark.parametrize(("rows", "length", "window"), [(40, 300, None), (40, 300, 24), (256, 4096, None)])
def test_a_prompt_gives_the_bits_of_its_rows_alone(name: str, rows: int, length: int, window: int | None) -> None:
    """Rows are taken in blocks, and blocks, if their caches are long, in several turns."""
    q, k, v = draw(2, rows, 8, 128), draw(2, length, 2, 128), draw(2, length, 2, 128)
    positions = np.stack([np.arange(rows), np.arange(length - rows, length)])
    positions[1, -3:] = -1  # padding
    attend = program(window=window)
    stores = stored(k, name), stored(v, name)
    whole = attend(q, *stores, positions)
    for t in (0, 15, 16, 33, rows - 1):
        one = slice(t, t + 1)
        np.testing.assert_array_equal(attend(q[:, one], *stores, positions[:, one])[:, 0], whole[:, t])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "turbo3"])
@pytest.mark.parametrize("rows", [3, 5, 7])
def test_rows_that_fill_tiles_in_part_have_the_bits_of_rows_alone(name: str, rows: int) -> None:
    """On processors with AMX more than eight rows are multiplied by tiles of 16, which these fill in part."""
    q, k, v = draw(1, rows, 6, 128), draw(1, 600, 2, 128), draw(1, 600, 2, 128)
    q[0, 0, 1, 3], v[0, 400] = np.inf, 0.0
    positions = np.arange(560, 560 + 5 * rows, 5)[None]
    stores = stored(k, name), stored(v, name)
    attend = program(window=512)
    whole = attend(q, *stores, positions)
    assert np.isnan(whole[0, 0, 1]).all()
    assert np.isfinite(np.delete(whole.reshape(rows * 6, 128), 1, axis=0)).all()
    for t in range(rows):
        one = slice(t, t + 1)
        np.testing.assert_array_equal(attend(q[:, one], *stores, positions[:, one])[:, 0], whole[:, t])


SHORT = Case("f32", "f32", ((5, 6, 7, 8), (36, 37, 38, 39), (-1, 0, 1, 2)), 40, width=16)


def test_native_attention_has_the_derivatives_of_the_xla_form() -> None:
    def loss(q: jax.Array, k: KVStore, impl: str) -> jax.Array:
        return jnp.sum(jnp.sin(run(q, k, SHORT.caches[1], SHORT.rows, scale=SCALE, impl=impl)))

    q, k = jnp.asarray(SHORT.q), SHORT.caches[0]
    got, want = (jax.jit(jax.grad(partial(loss, impl=impl), (0, 1)))(q, k) for impl in ("cpu_native", "xla_floats"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_rms(a, b) < 1e-5


def test_programs_for_other_platforms_do_without_native_kernels() -> None:
    case = LONG["q8_0"]
    export = jax.export.export(jax.jit(partial(attend, scale=SCALE)), platforms=["tpu"])
    with using(platform="tpu"):
        assert "specjax_attend" not in export(case.q, *case.caches, case.rows).mlir_module()


@cache
def many_chunks(name: str) -> tuple[Any, ...]:
    """A call, and what the reference makes of it, for all instruction sets."""
    q, k, v = draw(1, 4, 8, 128), draw(1, 2560, 2, 128), draw(1, 2560, 2, 128)
    positions, stores = np.asarray([[100, 700, 2100, 2559]]), (stored(k, name), stored(v, name))
    return q, stores, positions, np.asarray(reference(q, *stores, positions, scale=N**-0.5))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_see_many_chunks_change_nothing_for_one_that_sees_few(name: str) -> None:
    """For many chunks queries are prepared once, and what comes next is asked for in another way."""
    (q, stores, positions, want), attend = many_chunks(name), program()
    whole = attend(q, *stores, positions)
    for t in range(4):
        one = slice(t, t + 1)
        np.testing.assert_array_equal(attend(q[:, one], *stores, positions[:, one])[:, 0], whole[:, t])
    assert relative_rms(whole, want) < max(1e-6, integer_error(name))


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_rows_over_very_long_caches_are_taken_in_smaller_blocks() -> None:
    """Of 16 tokens what waits to be merged would not fit: 256 chunks x 64 heads x 16 tokens x 130 floats."""
    slots, heads = 1 << 16, 64
    q, cache = draw(1, 16, heads, 128), draw(1, slots, 1, 128)
    store, positions, attend = stored(cache, "q8_0"), np.arange(slots - 16, slots)[None], program()
    attend(q, store, store, positions % 256)
    before = resident()
    whole = attend(q, store, store, positions)
    assert resident() - before < 110 << 20, "half of 136 MB"
    half = attend(q[:, 8:], store, store, positions[:, 8:])
    np.testing.assert_array_equal(whole[:, 8:], half)
    weights = np.exp(q[0, -1] @ cache[0, :, 0].T * N**-0.5)
    want = weights @ cache[0, :, 0] / weights.sum(axis=1, keepdims=True)
    assert relative_rms(whole[0, -1], want) < 0.02


TILED = [(name, 128, queries) for name in ("q8_0", "q4_0") for queries in (1, 3, 4, 6, 8)]
TILED += [("turbo2", 256, 6), ("turbo3", 128, 4), ("turbo3", 256, 8), ("turbo3", 384, 3), ("turbo4", 128, 8)]


@pytest.mark.skipif("amx" not in native.instruction_sets(), reason="AMX does not work here")
@pytest.mark.parametrize(("name", "width", "queries"), TILED)
@pytest.mark.parametrize(("tokens", "slots", "window"), [(1, 300, None), (2, 2560, None), (5, 600, 90)])
def test_tiles_give_the_bits_of_vectors(
    name: str, width: int, queries: int, tokens: int, slots: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries share a KV head. Few of them are columns of tiles, more are rows; `slots` fill no whole tile."""
    q, k, v = draw(1, tokens, 2 * queries, width), draw(1, slots - 4, 2, width), draw(1, slots - 4, 2, width)
    q[0, 0, 0, 5] = np.nan
    stores, positions = (stored(k, name), stored(v, name)), np.arange(slots - tokens, slots)[None] - 5
    results = []
    for isa in ("amx", "avx512vnni"):
        monkeypatch.setenv(library.ISA_VARIABLE, isa)
        lowered = jax.jit(partial(run, window=window)).lower(q, *stores, positions)
        assert f'isa = "{isa}"' in lowered.as_text()
        results.append(np.asarray(lowered.compile()(q, *stores, positions)))
    amx, vectors = results
    assert np.isnan(amx[0, 0, 0]).all()
    assert np.isfinite(amx).sum() == amx.size - width
    np.testing.assert_array_equal(amx, vectors)
