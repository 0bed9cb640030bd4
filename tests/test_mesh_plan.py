"""Which part of a parameter a device has."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tiny_models import make_config

from checkpoints.mapping.reading import Given
from specjax.mesh.plan import Cut, Plan, as_mesh, cut_of
from specjax.models.dense import DenseConfig
from specjax.models.qwen3_5 import LINEAR_ATTENTION

WHOLE = np.arange(24 * 6).reshape(24, 6)


def parts_of(cut: Cut, values: np.ndarray) -> list[np.ndarray]:
    return [cut.part(Given(values), index) for index in range(len(cut.pieces))]


def test_what_does_not_differ_is_whole_everywhere() -> None:
    assert cut_of((24, 6), (24, 6), 4) is None


@pytest.mark.parametrize(("local", "axis"), [((6, 6), 0), ((24, 3), 1)])
def test_the_axis_that_differs_is_split(local: tuple[int, int], axis: int) -> None:
    cut = cut_of((24, 6), local, 24 * 6 // (local[0] * local[1]))
    assert cut is not None
    np.testing.assert_array_equal(np.concatenate(parts_of(cut, WHOLE), axis=axis), WHOLE)


def test_segments_are_split_one_by_one() -> None:
    """Of three vectors of 8 side by side, each half has a half of each."""
    cut = cut_of((24, 6), (12, 6), 2, (8, 8, 8))
    assert cut is not None
    first, second = parts_of(cut, WHOLE)
    np.testing.assert_array_equal(first, WHOLE[[*range(4), *range(8, 12), *range(16, 20)]])
    np.testing.assert_array_equal(second, WHOLE[[*range(4, 8), *range(12, 16), *range(20, 24)]])


def test_neighbours_share_what_is_too_short_to_split() -> None:
    """Three heads of 8 rows on six parts."""
    cut = cut_of((24, 6), (8, 6), 6, shared=True)
    assert cut is not None
    for index, part in enumerate(parts_of(cut, WHOLE)):
        np.testing.assert_array_equal(part, WHOLE[8 * (index // 2) : 8 * (index // 2) + 8])


def test_what_does_not_divide_is_filled_up_with_zeros() -> None:
    """24 rows in parts of 9, of which the last one has 6; in parts of 16, of which the last two have none."""
    cut = cut_of((24, 6), (9, 6), 3)
    assert cut is not None
    np.testing.assert_array_equal(np.concatenate(parts_of(cut, WHOLE)), np.pad(WHOLE, ((0, 3), (0, 0))))
    cut = cut_of((24, 6), (16, 6), 4)
    assert cut is not None
    np.testing.assert_array_equal(np.concatenate(parts_of(cut, WHOLE)), np.pad(WHOLE, ((0, 40), (0, 0))))


def test_hidden_columns_of_packed_matrices_are_whole_blocks() -> None:
    """17408 columns are 68 blocks of 256: seven of eight parts have 9, and the last one has 5 and zeros."""
    sizes = {"vocab_size": 64, "num_layers": 1, "width": 32, "num_heads": 8, "num_kv_heads": 8, "head_width": 4}
    config = DenseConfig(architecture="qwen3", mlp_width=17408, context_length=64, unit=256, **sizes)
    cut = cut_of((4, 17408), (4, config.shard(8).mlp_width), 8)
    assert cut is not None
    assert cut.fits(256)
    assert not Cut(-1, 17408, (((0, 2176),), ((2176, 4352),)), 2176).fits(256)
    blocks = np.arange(4 * 68, dtype=np.uint8).reshape(4, 68) + 1  # of a byte each
    np.testing.assert_array_equal(np.concatenate(parts_of(cut, blocks), axis=1), np.pad(blocks, ((0, 0), (0, 4))))


def test_rows_of_bytes_are_cut_between_blocks() -> None:
    """12 values in blocks of 3, which take 4 bytes each."""
    cut = cut_of((2, 12), (2, 6), 2)
    assert cut is not None
    assert cut.fits(3)
    assert not cut.fits(4)
    blocks = np.arange(2 * 16, dtype=np.uint8).reshape(2, 16)
    np.testing.assert_array_equal(np.concatenate(parts_of(cut, blocks), axis=1), blocks)


@pytest.mark.parametrize(
    ("whole", "local", "parts", "segments"),
    [((24,), (7,), 3, None), ((24,), (16,), 2, (8, 16)), ((24,), (12,), 2, (9, 15)), ((24,), (12,), 2, (8, 8))],
)
def test_what_cannot_be_cut_so_is_refused(
    whole: tuple[int], local: tuple[int], parts: int, segments: tuple[int, ...] | None
) -> None:
    with pytest.raises(ValueError, match="cannot"):
        cut_of(whole, local, parts, segments)


def test_all_parameters_that_cannot_be_cut_are_listed() -> None:
    shapes = {"a": (6,), "b": (4,), "c": (9,)}
    local = {"a": (2,), "b": (2,), "c": (4,)}
    mesh = jax.sharding.AbstractMesh((1, 2), ("rows", "model"))
    with pytest.raises(ValueError, match=r"a: .*; c: "):
        Plan.of(mesh, shapes, local, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [2, 4])
def test_value_heads_of_a_part_read_its_key_heads(parts: int) -> None:
    """Value head j reads key head j % Hk, in the whole and in each part."""
    config = make_config(linear_key_heads=4, linear_value_heads=12, layer_types=(LINEAR_ATTENTION,), num_heads=4)
    keys, values = config.linear_key_heads, config.linear_value_heads
    heads = cut_of((values,), (values // parts,), parts, config.segments["beta_proj"])
    assert heads is not None
    for index, own in enumerate(parts_of(heads, np.arange(values))):
        own_keys = np.arange(keys).reshape(parts, -1)[index]
        np.testing.assert_array_equal(own % keys, own_keys[np.arange(len(own)) % len(own_keys)])


def test_a_mesh_of_one_device_is_one() -> None:
    assert dict(as_mesh("1x1").shape) == {"rows": 1, "model": 1}
