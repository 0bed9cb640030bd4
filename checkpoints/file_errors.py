"""Errors of the system that say which file they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Give an `OSError` of the block the name of the file that the block writes, if it has none: such are those of a
    full disk, which come up when a file is already open."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """A new text file, which is closed in the end. Closing writes too: its errors are `named` as well."""
    file = path.open("w", encoding="utf-8")
    try:
        yield file
    finally:
        with named(path):
            file.close()
