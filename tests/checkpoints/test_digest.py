"""The digest of weights: one for a model however it is stored and loaded, another for any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import make_config, make_params, write_tiny_gguf

import checkpoints
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.ggml_types import GGML_TYPES, decode_rows
from checkpoints.mapping.digest import WeightDigest
from checkpoints.mapping.parts import part_of
from checkpoints.quantization import encode
from specjax.models.registry import FAMILIES

CONFIG = make_config()


def digest(path: str, values: np.ndarray, *kind: object) -> str:
    collected = WeightDigest()
    collected.add(path, values, *kind)  # type: ignore[arg-type]
    return str(collected)


def test_a_model_has_one_digest_in_every_format_and_however_it_is_kept(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "m.gguf", CONFIG, weights="Q8_0")
    prepare(source, tmp_path / "m.orbax", FAMILIES).run()
    prepare(source, tmp_path / "hf", FAMILIES, ConvertOptions("hf", dtype="float32")).run()
    found = {
        checkpoints.load(source, FAMILIES).digest,
        checkpoints.load(source, FAMILIES, "bfloat16").digest,
        checkpoints.load(source, FAMILIES, packed="a8").digest,
        checkpoints.load(tmp_path / "m.orbax", FAMILIES, packed="a16").digest,
        checkpoints.load(tmp_path / "hf", FAMILIES).digest,
    }
    assert len(found) == 1
    other = tmp_path / "other.gguf"
    checkpoints.write_gguf(
        other, FAMILIES, CONFIG, make_params(CONFIG, seed=1), checkpoints.load(source, FAMILIES).tokenizer
    )
    assert checkpoints.load(other, FAMILIES).digest not in found


@pytest.mark.parametrize("shape", [(3, 8), (5, 1000, 320), (4096, 2048), (1, 64)])
def test_what_is_changed_everywhere_is_noticed(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    original = digest("a", values)
    assert original == digest("a", values.copy())
    assert original != digest("b", values)
    assert original != digest("a", values[..., ::-1])
    assert original != digest("a", values * 1.01)
    assert shape[0] == 1 or original != digest("a", values[::-1])


def test_every_value_of_a_vector_counts() -> None:
    values = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    changed = values.copy()
    changed[1500] = np.nextafter(changed[1500], 9)
    assert digest("norm", values) != digest("norm", changed)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "IQ4_NL"])
def test_packed_rows_count_as_the_values_that_they_stand_for(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((300, 768)).astype(np.float32)
    packed, kind = np.asarray(encode(values, name, None, name="w")).reshape(300, -1), GGML_TYPES[name]
    assert digest("w", packed, kind) == digest("w", decode_rows(packed, kind))
    assert digest("w", packed, kind) != digest("w", values)


@pytest.mark.parametrize("name", [None, "Q8_0"])
@pytest.mark.parametrize(("shape", "axis"), [((1, 2048), -1), ((6, 40, 64), -3), ((300, 768), -2)])
def test_parts_add_up_to_the_whole_also_if_nothing_of_them_is_looked_at(
    name: str | None, shape: tuple[int, ...], axis: int
) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kind = None if name is None else GGML_TYPES[name]
    if name is not None:
        values = np.asarray(encode(values, name, None, name="w")).reshape(*shape[:-1], -1)
    whole = digest("w", values, kind)
    collected, size = WeightDigest(), shape[axis] // 2
    for pieces in (((0, size),), ((size, 2 * size),)):
        other = WeightDigest()
        other.add("w", part_of(values, axis, shape[axis], pieces), kind, shape, (axis, pieces))
        assert str(other) != whole or shape[0] == 1
        collected.learn([other.known()])
    assert str(collected) == whole
