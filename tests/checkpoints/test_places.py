"""Where files are written: names that mean something to a library, and several programs at one place."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from tiny_checkpoints import assert_same, make_config, make_params, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError, quantization
from checkpoints.convert import Conversion, ConvertOptions, prepare
from checkpoints.orbax.folder import OrbaxFolder
from checkpoints.quantization import Quantization, QuantizeOptions
from checkpoints.verifier import verify
from specjax.models.registry import FAMILIES

CONFIG = make_config(moe=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", CONFIG)


def test_orbax_folders_are_read_where_they_were_written(tiny: Path, tmp_path: Path) -> None:
    """Also beside each other, and beside a folder whose name the escapes of a URL would give."""
    other = tmp_path / "other.gguf"
    checkpoints.write_gguf(
        other, FAMILIES, CONFIG, make_params(CONFIG, seed=1), checkpoints.load(tiny, FAMILIES).tokenizer
    )
    prepare(other, tmp_path / "aAb.orbax", FAMILIES).run()
    for name in ("a#b.orbax", "a?b.orbax", "a%41b.orbax", "par#ent/c.orbax", "p?r%20/ä b.orbax"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        conversion = prepare(tiny, tmp_path / name, FAMILIES)
        assert not conversion.compare(conversion.run()).wrong, name
        assert not verify(tmp_path / name, FAMILIES).errors, name
        assert_same(checkpoints.load(tmp_path / name, FAMILIES).params, make_params(CONFIG))


def test_a_backslash_in_the_path_of_an_orbax_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    """TensorStore would put the arrays elsewhere."""
    with pytest.raises(CheckpointError, match=r"a\\b\.orbax: .*path with a backslash; choose another place"):
        prepare(tiny, tmp_path / r"a\b.orbax", FAMILIES)
    assert not list(tmp_path.iterdir())
    prepare(tiny, tmp_path / "c.orbax", FAMILIES).run()
    moved = (tmp_path / "c.orbax").rename(tmp_path / r"a\b.orbax")
    with pytest.raises(CheckpointError, match="backslash"):
        OrbaxFolder(moved)
    prepare(tiny, tmp_path / r"a\b", FAMILIES, ConvertOptions("hf")).run()
    assert checkpoints.describe(tmp_path / r"a\b", FAMILIES).problems is None


@pytest.mark.parametrize("kind", ["gguf", "split", "hf", "orbax", "quantize"])
def test_of_two_conversions_to_one_place_the_second_is_refused_at_once(kind: str, tiny: Path, tmp_path: Path) -> None:
    """Unless it may replace what is there; what the first made stays."""
    first, second = (planned(kind, tiny, tmp_path) for _ in range(2))
    refused = []

    def run_second(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(CheckpointError, match="another program is writing it just now; wait until") as raised:
                second.run()
            refused.append(raised)

    first.run(run_second)
    assert refused
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(CheckpointError, match="exists; give --force"):
        second.run()


@pytest.mark.parametrize("kind", ["gguf", "split", "hf", "orbax", "quantize"])
def test_what_another_program_makes_meanwhile_is_kept(kind: str, tiny: Path, tmp_path: Path) -> None:
    """Conversions check once more before their result takes its name."""
    conversion = planned(kind, tiny, tmp_path)
    made = set()

    def make(done: int, total: int) -> None:
        (*_, hidden) = sorted(tmp_path.glob(".model*.part"))  # the last part
        made.add(tmp_path / f"{hidden.name.split('.')[1]}.gguf")
        for path in made:
            path.write_text("a letter")

    with pytest.raises(CheckpointError, match=r"another program made it while this one was at work.*--force"):
        conversion.run(make)
    assert set(tmp_path.iterdir()) == made
    assert {path.read_text() for path in made} == {"a letter"}


def planned(kind: str, source: Path, folder: Path) -> Conversion | Quantization:
    destination = folder / "model.gguf"
    if kind == "quantize":
        return quantization.prepare(source, destination, FAMILIES, QuantizeOptions("Q8_0"))
    options = ConvertOptions(split_bytes=100_000) if kind == "split" else ConvertOptions(kind)  # type: ignore[arg-type]
    return prepare(source, destination, FAMILIES, options)


def test_errors_of_the_system_name_the_file_that_was_asked_for(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the system's refusal is played."""

    def refuse(*_: object, prefix: str, suffix: str, dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{dir}/{prefix}x7_ab{suffix}")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    for kind in ("gguf", "hf", "orbax", "quantize"):
        with pytest.raises(PermissionError) as raised:
            planned(kind, tiny, tmp_path).run()
        assert raised.value.filename == str(tmp_path / "model.gguf")
