"""Formats of KV caches: what they lose, what they take, and that zeros stay zeros."""

from __future__ import annotations

from functools import partial

import gguf
import jax
import numpy as np
import pytest
from compiled import decoded, rotated
from tiny_models import relative_rms

from pallas_kernels.kv_formats import FORMATS, KVStore, format_named
from pallas_kernels.kv_formats.packing import pack, pack_bits, unpack, unpack_bits

# Relative RMS of Gaussian values there and back, and bits per value, at a head width of 128.
LOSS = {
    "f32": 0, "f16": 2.1e-4, "bf16": 1.7e-3, "q8_0": 5.4e-3, "q4_0": 0.087, "turbo2": 0.352, "turbo3": 0.188,
    "turbo4": 0.099,
}  # fmt: skip
BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5, "turbo2": 2.125, "turbo3": 3.125, "turbo4": 4.125}


ROWS = 200  # of most tests, which so have their programs in common


def gaussian(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@partial(jax.jit, static_argnums=1)
def stored(x: np.ndarray, format: str) -> KVStore:
    return KVStore.zeros(x.shape, format).set(slice(None), x)


@pytest.mark.parametrize(("format", "width"), [*((name, 128) for name in FORMATS), ("turbo3", 64), ("turbo3", 256)])
def test_there_and_back_loses_no_more_than_the_format_must(format: str, width: int) -> None:
    x = gaussian(ROWS, width)
    assert relative_rms(decoded(stored(x, format)), x) <= LOSS[format]


@pytest.mark.parametrize(
    ("format", "width"), [("q8_0", 48), ("q4_0", 16), ("turbo2", 192), ("turbo3", 16), ("turbo4", 80)]
)
def test_other_widths_are_padded(format: str, width: int) -> None:
    x = gaussian(ROWS, width)
    store = stored(x, format)
    assert store.shape == x.shape
    assert rotated(store).shape[-1] == store.kind.stored_width(width)
    assert relative_rms(decoded(store), x) <= LOSS[format]


@pytest.mark.parametrize("format", FORMATS)
def test_sizes_are_what_they_are_said_to_be(format: str) -> None:
    for width in (16, 64, 96, 256):
        store = jax.eval_shape(partial(KVStore.zeros, (3, width), format))
        num_bytes = sum(part.size * part.dtype.itemsize for part in store.parts.values())
        assert num_bytes == 3 * store.kind.num_bytes(width)
    assert format_named(format).bits_per_value(128) == BITS[format]


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_are_kept_as_zeros(format: str) -> None:
    x = gaussian(3, 256)
    x[1] = 0
    store = stored(x, format)
    assert all(not np.asarray(part)[1].any() for part in store.parts.values())
    assert not np.asarray(decoded(store))[1].any()
    assert jax.tree.map(np.shape, store) == jax.tree.map(np.shape, KVStore.zeros(x.shape, format))


@pytest.mark.parametrize("format", [name for name, format in FORMATS.items() if format.quantized])
def test_extreme_values_stay_finite(format: str) -> None:
    x = gaussian(ROWS, 128)
    x[:3, 3] = 1e3
    scaled = x * np.resize(np.array([1e-38, 1e-3, 1e8], np.float32), (ROWS, 1))
    assert np.isfinite(np.asarray(decoded(stored(scaled, format)))).all()


@pytest.mark.parametrize("format", FORMATS)
def test_a_value_that_is_nan_is_not_hidden(format: str) -> None:
    x = gaussian(ROWS, 128)
    x[90, 70] = np.nan
    read = np.asarray(decoded(stored(x, format)))
    assert np.isnan(read[90, 70])
    assert np.isfinite(np.delete(read, 90, axis=0)).all()


@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_blocks_are_those_of_ggml(format: str) -> None:
    x = gaussian(ROWS, 128) * np.exp2(np.arange(ROWS) % 48 - 32)[:, None].astype(np.float32)
    x[5, :32], x[6, 3] = 0, 1e4
    kind = gguf.GGMLQuantizationType[format.upper()]
    want = gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)
    np.testing.assert_array_equal(decoded(stored(x, format)), want)


@pytest.mark.parametrize("format", ["turbo2", "turbo3", "turbo4"])
def test_rotation_keeps_products(format: str) -> None:
    kind = format_named(format)
    x, y = gaussian(10, 96), gaussian(20, 96)[10:]
    rotate, unrotate = jax.jit(kind.rotate), jax.jit(partial(kind.unrotate, width=96))
    products = np.sum(np.asarray(rotate(x)) * np.asarray(rotate(y)), axis=-1)
    np.testing.assert_allclose(products, np.sum(x * y, axis=-1), atol=1e-4)
    assert relative_rms(unrotate(rotate(x)), x) < 1e-6


@pytest.mark.parametrize("format", ["turbo2", "turbo3", "turbo4"])
def test_one_large_value_costs_its_neighbours_nothing_that_is_not_shared(format: str) -> None:
    """Rotation spreads an outlier: the loss is that of Gaussian values, relative to the whole vector."""
    x = gaussian(ROWS, 128)
    x[:, 17] = 50
    assert relative_rms(decoded(stored(x, format)), x) <= 1.3 * LOSS[format]


@pytest.mark.parametrize("bits", [2, 4])
def test_packed_codes_come_back(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 5, 64)).astype(np.uint8)
    packed = jax.jit(partial(pack, bits=bits))(codes)
    assert packed.shape == (3, 5, 64 * bits // 8)
    np.testing.assert_array_equal(jax.jit(partial(unpack, bits=bits))(packed), codes)


def test_packed_bits_come_back_in_their_order() -> None:
    bits = np.random.default_rng(0).integers(0, 2, (3, 64)).astype(np.uint8)
    packed = jax.jit(pack_bits)(bits)
    np.testing.assert_array_equal(packed, np.packbits(bits, axis=-1, bitorder="little"))
    np.testing.assert_array_equal(jax.jit(unpack_bits)(packed), bits)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="KV type 'int8' is not known; known are f32, f16, bf16, q8_0, q4_0, turbo2"):
        format_named("int8")
