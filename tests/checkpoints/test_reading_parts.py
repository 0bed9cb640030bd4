"""Parts of parameters are read alone: they are those of the whole, and little else of the file is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import make_config, write_tiny_gguf

from checkpoints.convert import ConvertOptions, prepare
from checkpoints.load import OpenedCheckpoint, open_checkpoint
from checkpoints.mapping.digest import WeightDigest
from checkpoints.mapping.parts import part_of
from checkpoints.mapping.reading import Unread
from checkpoints.mapping.table import Form
from checkpoints.orbax import writer
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = ("dense/llama/model.gguf", "qwen3_5/dense/hf", "qwen3_next/a3b/hf", "gemma4/moe/hf", "step3_5/flash/model.gguf")
PARTS = 2


def each_parameter(opened: OpenedCheckpoint, digest: WeightDigest, look: Callable[[str, Unread], object]) -> None:
    """Let every parameter be looked at, packed ones as rows of blocks."""

    def put(path: str, values: Unread, form: Form) -> None:
        del form
        look(path, values)

    opened.rules.load(opened.source, str(opened.path), put=put, packed="a16", digest=digest)


def halves(opened: OpenedCheckpoint, path: str) -> dict[int, int]:
    """The axes of a parameter that can be halved, with their lengths."""
    units = opened.rules.units(opened.source)
    shape = opened.rules.shapes[path]
    steps = {axis: units.get(path, 1) if axis == -1 else 1 for axis in range(-len(shape), 0)}
    return {axis: shape[axis] for axis in steps if shape[axis] % (PARTS * steps[axis]) == 0}


@pytest.mark.parametrize("name", FILES)
def test_parts_along_every_axis_are_those_of_the_whole(name: str) -> None:
    opened = open_checkpoint(FIXTURES / name, FAMILIES)
    count = 0

    def look(path: str, values: Unread) -> None:
        nonlocal count
        whole = values.read()
        for axis, length in halves(opened, path).items():
            for start in (0, length // PARTS):
                pieces = ((start, start + length // PARTS),)
                np.testing.assert_array_equal(values.part(axis, length, pieces), part_of(whole, axis, length, pieces))
                count += 1

    each_parameter(opened, WeightDigest(), look)
    assert count > 2 * len(opened.rules.shapes)


@pytest.mark.parametrize("along", [0, -1], ids=["first axis", "last axis"])
@pytest.mark.parametrize("name", FILES[:3])
def test_what_processes_know_of_parts_makes_the_digest_of_the_whole(name: str, along: int) -> None:
    opened = open_checkpoint(FIXTURES / name, FAMILIES)

    def of_part(number: int) -> WeightDigest:
        digest = WeightDigest()

        def look(path: str, values: Unread) -> None:
            axes = halves(opened, path)
            if not axes:
                values.read()
                return
            axis = list(axes)[along]
            length, size = axes[axis], axes[axis] // PARTS
            values.part(axis, length, ((number * size, number * size + size),))

        each_parameter(opened, digest, look)
        return digest

    whole = WeightDigest()
    each_parameter(opened, whole, lambda path, values: values.read())
    first, second = of_part(0), of_part(1)
    assert str(first) != str(whole)
    first.learn([first.known(), second.known()])
    assert str(first) == str(whole)


def test_a_part_that_ends_within_blocks_is_decoded(tmp_path: Path) -> None:
    """A quarter of 96 columns is no whole block of 32."""
    opened = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", make_config(), weights="Q8_0"), FAMILIES)
    path = "target.layers_0.mlp.down_proj.weight"
    assert opened.rules.shapes[path][-1] == 96
    count = 0

    def put(name: str, values: Unread, form: Form) -> None:
        nonlocal count
        del form
        if name == path:
            whole = values.read()
            for start in range(0, 96, 24):
                pieces = ((start, start + 24),)
                np.testing.assert_array_equal(values.part(-1, 96, pieces), part_of(whole, -1, 96, pieces))
                count += 1

    opened.rules.load(opened.source, str(opened.path), put=put)
    assert count == 4


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count bytes that are read")
@pytest.mark.parametrize("kind", ["gguf", "hf", "orbax"])
@pytest.mark.parametrize("along", [0, -1], ids=["rows", "columns"])
def test_half_of_the_model_is_half_of_the_bytes(
    tmp_path: Path, kind: str, along: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_CHUNK_BYTES", 1 << 14)
    config = make_config(vocab_size=512, width=256, mlp_width=512)
    path = write_tiny_gguf(tmp_path / "m.gguf", config, weights="Q8_0")
    if kind != "gguf":
        source, path = path, tmp_path / f"m.{kind}"
        prepare(source, path, FAMILIES, ConvertOptions("hf", dtype="float32") if kind == "hf" else None).run()
    opened = open_checkpoint(path, FAMILIES)

    def look(path: str, values: Unread) -> None:
        axes = halves(opened, path) if len(opened.rules.shapes[path]) > 1 else {}
        if axes:
            axis = list(axes)[along]
            values.part(axis, axes[axis], ((0, axes[axis] // PARTS),))
        else:
            values.read()

    before = bytes_read()
    each_parameter(opened, WeightDigest(), look)
    whole = sum(info.num_bytes for info in opened.source.tensors.values())
    assert bytes_read() - before < 0.6 * whole
