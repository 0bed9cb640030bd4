"""Checks before a GGUF is written: may its files be made?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from checkpoints.errors import CheckpointError
from checkpoints.gguf.file import parts_of


def check_files(source: Path, destination: Path, files: Sequence[Path], *, force: bool) -> None:
    """Check that a GGUF can be made.

    Args:
        source: what it is made of.
        destination: the name that was asked for.
        files: the files that will be written: that one, or parts whose names follow from it.
        force: replace what is there.

    Raises:
        CheckpointError: one of them exists and is not to be replaced, is a folder, or belongs to the source; or there
            is no folder to make it in.
    """
    check_folder(destination)
    there = [path for path in dict.fromkeys((destination, *files)) if path.exists()]
    sources = [path for path in parts_of(source) if path.exists()]
    for path in there:
        if path.is_dir():
            raise CheckpointError(f"{path} is a folder; name the GGUF file to make")
        if any(path.samefile(other) for other in sources):
            raise CheckpointError(f"{path} is the source itself; give another destination")
    if there and not force:
        raise CheckpointError(f"{there[0]}: exists; give --force to replace it")


def check_folder(destination: Path) -> None:
    """
    Raises:
        CheckpointError: the folder in which `destination` is to be does not exist; no program here makes it.
    """
    if not destination.absolute().parent.is_dir():
        raise CheckpointError(f"cannot write {destination}: there is no folder {destination.parent}; make it first")
