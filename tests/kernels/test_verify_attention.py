"""Attention over caches: every form against a computation in float64, and what the native kernels promise beyond it."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import here, needs_native
from scipy.special import softmax
from tiny_models import relative_rms

from pallas_kernels import native, verify_attention
from pallas_kernels.kv_formats import FORMATS, KVStore

SCALE = 0.2
POSITIONS = np.array([[5, 6, 7, 8], [520, 521, 522, 523], [-1, 0, 1, 2]])  # of rows that see a part of 600 slots
RING, WINDOW = 300, 280
RING_POSITIONS = np.array([[10, 11, 12, 13], [299, 300, 301, 302], [898, 899, 900, 901]])

IMPLEMENTATIONS = here(["xla_tiles", "cpu_native"])


@cache
def caches(k_type: str, v_type: str, slots: int, width: int = 64, kv_heads: int = 2) -> tuple[KVStore, KVStore]:
    rng = np.random.default_rng(1)
    return tuple(
        jax.jit(partial(KVStore.of, format=name))(rng.normal(size=(3, slots, kv_heads, width)).astype(np.float32))
        for name in (k_type, v_type)
    )  # type: ignore[return-value]


def queries(width: int = 64, heads: int = 4) -> np.ndarray:
    return 3 * np.random.default_rng(2).normal(size=(3, 4, heads, width)).astype(np.float32)


@partial(jax.jit, static_argnames=("window", "impl"))
def attend(
    q: jax.Array, k: KVStore, v: KVStore, positions: jax.Array, window: int | None = None, impl: str | None = None
) -> jax.Array:
    return verify_attention.attend(q, k, v, positions, scale=SCALE, window=window, impl=impl)


def law(q: np.ndarray, k: KVStore, v: KVStore, positions: np.ndarray, window: int | None = None) -> np.ndarray:
    """By the definition of a cache: the latest position before the row's that falls into a slot stands there."""
    keys, values = (np.asarray(store.values(), np.float64) for store in (k, v))
    out, per_kv_head, slots = np.zeros(q.shape), q.shape[2] // k.shape[2], k.shape[1]
    for b, t, h in np.ndindex(q.shape[:3]):
        first = 0 if window is None else max(0, positions[b, t] - window + 1)
        seen = np.arange(first, positions[b, t] + 1) % slots
        if len(seen):
            weights = softmax(keys[b, seen, h // per_kv_head] @ q[b, t, h].astype(np.float64) * SCALE)
            out[b, t, h] = weights @ values[b, seen, h // per_kv_head]
    return out


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_full_caches(name: str, impl: str) -> None:
    k, v = caches(name, name, 600)
    got = attend(queries(), k, v, POSITIONS, impl=impl)
    assert relative_rms(got, law(queries(), k, v, POSITIONS)) < 1e-6
    assert not np.asarray(got[2, 0]).any(), "a row that sees nothing"


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["f32", "q8_0", "turbo3"])
def test_rings_that_have_gone_round(name: str, impl: str) -> None:
    k, v = caches(name, name, RING)
    got = attend(queries(), k, v, RING_POSITIONS, WINDOW, impl)
    assert relative_rms(got, law(queries(), k, v, RING_POSITIONS, WINDOW)) < 1e-6


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("k_type", "v_type", "width", "heads"),
    [("q8_0", "turbo3", 128, 8), ("turbo2", "f16", 256, 2), ("bf16", "q4_0", 24, 6), ("turbo4", "f32", 80, 2)],
)
def test_types_widths_and_heads_mix(k_type: str, v_type: str, width: int, heads: int, impl: str) -> None:
    k, v = caches(k_type, v_type, 40, width)
    q, positions = queries(width, heads), np.minimum(POSITIONS, 39)
    assert relative_rms(attend(q, k, v, positions, impl=impl), law(q, k, v, positions)) < 1e-6


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_float_caches_in_one_piece(name: str) -> None:
    """Queries and weights are rounded to the type of the cache."""
    k, v = caches(name, name, 600)
    want, got = law(queries(), k, v, POSITIONS), np.asarray(attend(queries(), k, v, POSITIONS, impl="xla_floats"))
    sees = POSITIONS >= 0
    assert relative_rms(got[sees], want[sees]) < {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}[name]
    assert np.isfinite(got).all()


def test_the_reference_is_the_law() -> None:
    k, v = caches("turbo3", "q8_0", 40, 16)
    q, positions = queries(16), np.minimum(POSITIONS, 39)
    assert (
        relative_rms(
            verify_attention.attend(q, k, v, positions, scale=SCALE, impl="reference"), law(q, k, v, positions)
        )
        < 1e-6
    )


@needs_native
@pytest.mark.parametrize("isa", native.instruction_sets())
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_the_others(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: speculation is lossless because verifying a token gives what decoding it alone gives."""
    monkeypatch.setenv("SPECJAX_CPU_ISA", isa)
    run = jax.jit(partial(verify_attention.attend, scale=SCALE, impl="cpu_native"))
    k, v = caches(name, name, 600)
    q, whole = queries(), np.asarray(run(queries(), k, v, POSITIONS))
    assert relative_rms(whole, law(q, k, v, POSITIONS)) < 1e-6
    for t in range(4):
        np.testing.assert_array_equal(run(q[:, t : t + 1], k, v, POSITIONS[:, t : t + 1])[:, 0], whole[:, t])
    one = [store.map(lambda part: part[1:2]) for store in (k, v)]
    np.testing.assert_array_equal(run(q[1:2, 1:3], *one, POSITIONS[1:2, 1:3]), whole[1:2, 1:3])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["f32", "q8_0", "turbo3"])
def test_slots_that_no_row_sees_are_not_read(name: str, impl: str) -> None:
    k, v = caches(name, name, 600)
    part = "scales" if "scales" in k.parts else "codes"
    after = np.arange(600) > POSITIONS.max(axis=1)[:, None]
    if impl == "xla_tiles":  # reads whole tiles, up to the longest sequence's
        after = np.broadcast_to(np.arange(600) >= 512 + 256, after.shape)
    spoilt = [
        KVStore({**store.parts, part: jnp.where(after[:, :, None, None], np.nan, store.parts[part])}, name, 64)
        for store in (k, v)
    ]
    got = attend(queries(), *spoilt, POSITIONS, impl=impl)
    np.testing.assert_array_equal(got, attend(queries(), k, v, POSITIONS, impl=impl))


@needs_native
def test_native_attention_has_the_derivatives_of_the_xla_form() -> None:
    k, v = caches("f32", "f32", 40, 16)
    positions = np.minimum(POSITIONS, 39)

    def loss(q: jax.Array, k: KVStore, impl: str) -> jax.Array:
        return jnp.sum(jnp.sin(verify_attention.attend(q, k, v, positions, scale=SCALE, impl=impl)))

    got, want = (jax.grad(loss, (0, 1))(jnp.asarray(queries(16)), k, impl) for impl in ("cpu_native", "xla_floats"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_rms(a, b) < 1e-5


@needs_native
def test_programs_for_other_platforms_do_without_native_kernels() -> None:
    k, v = caches("q8_0", "q8_0", 40)
    program = jax.export.export(jax.jit(partial(attend, impl="cpu_native")), platforms=["tpu"])
    text = program(queries(), k, v, np.minimum(POSITIONS, 39)).mlir_module()
    assert "specjax_attend" not in text


def test_arguments_that_do_not_fit_are_refused() -> None:
    k, v = caches("f32", "f32", 40)
    with pytest.raises(ValueError, match=r"q is \[B, T, H, N\], k and v are \[B, S, G, N\]"):
        attend(queries(32), k, v, POSITIONS)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 KV heads evenly"):
        attend(queries(heads=3), k, v, POSITIONS)
    with pytest.raises(ValueError, match="impl='xla_floats' does not fit: q8_0 is no float type"):
        attend(queries(), *caches("q8_0", "f32", 40), POSITIONS, impl="xla_floats")
    with pytest.raises(ValueError, match=r"positions have shape \(3, 3\); \[B, T\] is \(3, 4\)"):
        attend(queries(), k, v, POSITIONS[:, :3])
