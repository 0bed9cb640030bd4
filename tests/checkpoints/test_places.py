"""Where files are written: names that mean something to a library, and several programs at one place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_checkpoints import assert_same, make_config, make_params, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.orbax_folder import OrbaxFolder
from checkpoints.verifier import verify

CONFIG = make_config(moe=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", CONFIG)


@pytest.mark.parametrize("name", ["a#b.orbax", "a?b.orbax", "a%41b.orbax", "par#ent/c.orbax", "p?r%20/ä b.orbax"])
def test_an_orbax_folder_is_read_where_it_was_written(name: str, tiny: Path, tmp_path: Path) -> None:
    """Also beside a folder whose name the escapes of a URL would give."""
    other = tmp_path / "other.gguf"
    checkpoints.write_gguf(other, CONFIG, make_params(CONFIG, seed=1), checkpoints.load(tiny).tokenizer)
    prepare(other, tmp_path / "aAb.orbax").run()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    conversion = prepare(tiny, tmp_path / name)
    assert not conversion.compare(conversion.run()).wrong
    assert not verify(tmp_path / name).errors
    assert_same(checkpoints.load(tmp_path / name).params, make_params(CONFIG))


def test_a_backslash_in_the_path_of_an_orbax_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    """TensorStore would put the arrays elsewhere."""
    with pytest.raises(CheckpointError, match=r"a\\b\.orbax: .*path with a backslash; choose another place"):
        prepare(tiny, tmp_path / r"a\b.orbax")
    assert not list(tmp_path.iterdir())
    prepare(tiny, tmp_path / "c.orbax").run()
    moved = (tmp_path / "c.orbax").rename(tmp_path / r"a\b.orbax")
    with pytest.raises(CheckpointError, match="backslash"):
        OrbaxFolder(moved)
    prepare(tiny, tmp_path / r"a\b", ConvertOptions("hf")).run()
    assert checkpoints.describe(tmp_path / r"a\b").problems is None
