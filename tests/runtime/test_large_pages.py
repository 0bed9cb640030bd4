"""Weights lie in large pages where Linux gives them to programs that ask."""

from __future__ import annotations

import gc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import specjax
from checkpoints.mapping.reading import Given
from checkpoints.mapping.table import PLAIN
from specjax.runtime import large_pages

MAPPINGS = Path("/proc/self/smaps")
asks = pytest.mark.skipif(
    not large_pages.on_request(), reason="Linux gives large pages to all programs here, or to none"
)


def flags_at(address: int) -> list[str] | None:
    """The kernel's flags of the mapping that holds the address, None where nothing is mapped."""
    inside = False
    for line in MAPPINGS.read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            begin, end = (int(each, 16) for each in head.split("-"))
            inside = begin <= address < end
        elif inside and head == "VmFlags:":
            return line.split()[1:]
    return None


def put(path: str, values: Given, form: object) -> object:
    return jax.tree.map(jnp.asarray, values.read())


def moved(values: object) -> object:
    return large_pages.in_large_pages(put)("path", Given(values), PLAIN)


@asks
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
def test_arrays_are_moved_with_their_bits(dtype: str) -> None:
    given = jnp.asarray(np.arange(3 * 100_001).reshape(3, 100_001) % 251, dtype)
    got = moved({"a": given, "b": given[:1]})
    for name, expected in (("a", given), ("b", given[:1])):
        array = got[name]
        assert array.dtype == expected.dtype
        assert not array.committed
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected))
        assert "hg" in flags_at(array.unsafe_buffer_pointer())
    assert got["a"].unsafe_buffer_pointer() != given.unsafe_buffer_pointer()


@asks
def test_small_arrays_stay_and_places_are_kept() -> None:
    here = SingleDeviceSharding(jax.devices()[0])
    small, placed = jnp.zeros(100), jax.device_put(np.zeros(large_pages.LEAST, np.float32), here)
    got = moved({"small": small, "placed": placed})
    assert got["small"].unsafe_buffer_pointer() == small.unsafe_buffer_pointer()
    assert got["placed"].committed
    assert got["placed"].sharding == here
    assert "hg" in flags_at(got["placed"].unsafe_buffer_pointer())


@asks
def test_memory_goes_back_when_its_arrays_are_gone() -> None:
    """That of small ones, and that of a large one beside a small one."""
    regions = {size: large_pages._Regions() for size in (1000, large_pages.REGION)}
    memory = [each.take(length) for size, each in regions.items() for length in (size, 500)]
    addresses = [array.ctypes.data for array in memory]
    arrays = [jax.device_put(array, may_alias=True) for array in memory]
    del memory
    gc.collect()
    assert ["hg" in flags_at(address) for address in addresses] == [True] * 4
    del arrays
    gc.collect()
    assert ["hg" in (flags_at(address) or ()) for address in addresses] == [False] * 4


@asks
def test_arrays_stay_where_they_are_if_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(large_pages, "_region", none)
    given = jnp.zeros(large_pages.REGION, jnp.uint8)
    assert moved(given).unsafe_buffer_pointer() == given.unsafe_buffer_pointer()


@asks
def test_a_model_from_a_file_has_its_matrices_there() -> None:
    leaves = [leaf for leaf in jax.tree.leaves(specjax.load().params) if leaf.nbytes >= large_pages.LEAST]
    assert len(leaves) > 10
    assert all("hg" in flags_at(leaf.unsafe_buffer_pointer()) for leaf in leaves[:10])


@pytest.mark.parametrize("text", ["[always] madvise never", "always madvise [never]", None])
def test_nothing_is_moved_where_asking_changes_nothing(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "enabled"
    if text is not None:
        setting.write_text(text)
    monkeypatch.setattr(large_pages, "_SETTING", setting)
    assert large_pages.in_large_pages(put) is put
