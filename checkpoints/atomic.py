"""Files that are either complete or not there."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from checkpoints.errors import CheckpointError

_SUFFIX = ".part"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

STRAGGLERS = 5.0
"""Seconds in which threads that still write into a folder are waited for."""


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its name when the block ends well, and vanishes when it does not.

    The data are on the disk before the name changes, so not even a power cut leaves half a file under `path`. If `path`
    is a symbolic link, the file that it leads to is replaced.

    Raises:
        CheckpointError: the disk is full, or the file larger than files may be there.
        OSError: any other of the system's; it names `path`, and not the temporary file.
    """
    with replaced_together([path]) as (temporary,):
        yield temporary


@contextmanager
def replaced_together(paths: list[Path], *, force: bool = True) -> Iterator[list[Path]]:
    """Temporary paths for files of one folder that make sense together only; the first of them is its sign of life.

    When the block ends well, the earlier first file goes, the others take their names, and the new first file takes its
    own last: at no moment is there a mixture with a first file. Temporary files of a process that was killed while it
    wrote the same are removed.

    Args:
        paths: the files.
        force: whether files that are there already are replaced.

    Raises:
        CheckpointError: the disk is full, or a file larger than files may be there; or, without `force`, one of the
            files is there already, or another program is about to write it.
        OSError: any other of the system's; it names a path of `paths`, and not the temporary file.
    """
    paths = [path.resolve() if path.is_symlink() else path for path in paths]
    temporaries: list[Path] = []
    with ExitStack() as undo:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _errors_name(path), _folder_locked(path.parent):
                _remove_abandoned(path, force=force)
                descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent)
                undo.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            temporaries.append(Path(name))
            undo.callback(Path(name).unlink, missing_ok=True)
        with _errors_name(paths[0]):
            yield temporaries
            for temporary in temporaries:
                temporary.chmod(0o666 & ~_umask())
                _sync(temporary)
        with _errors_name(paths[0]), _folder_locked(paths[0].parent):
            for path in () if force else paths:
                _check_absent(path)
            if len(paths) > 1:
                paths[0].unlink(missing_ok=True)
            for temporary, path in reversed(list(zip(temporaries, paths, strict=True))):
                temporary.replace(path)
        _sync(paths[0].parent)


@contextmanager
def replaced_folder(path: Path, *, force: bool = True) -> Iterator[Path]:
    """A path at which the block makes a folder, which takes the name `path` when the block ends well.

    What is there by that name goes at the same moment. Remains of a process that was killed while it wrote the same are
    removed.

    Args:
        path: the folder.
        force: whether a file or folder that is there already is replaced; an empty folder always is.

    Raises:
        CheckpointError, OSError: see `replaced_together`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _errors_name(path), _folder_locked(path.parent):
        _remove_abandoned(path, force=force)
        holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent))
        descriptor = os.open(holder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        new = holder / "new"
        with _errors_name(path):
            yield new
            for file in new.rglob("*"):
                _sync(file)
        new.chmod(0o777 & ~_umask())
        with _errors_name(path), _folder_locked(path.parent):
            if not force:
                _check_absent(path)
            if path.exists():
                path.rename(holder / "old")
            new.rename(path)
        _sync(path.parent)
    finally:
        _remove_folder(holder)
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a small text file, whole or not at all."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_room(path: Path, num_bytes: int) -> None:
    """Say that there is too little room for a file before hours have been spent on its contents.

    Raises:
        CheckpointError: fewer than `num_bytes` are free where `path` is to be.
    """
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    if (free := shutil.disk_usage(folder).free) < num_bytes:
        raise CheckpointError(
            f"{path}: {num_bytes / 1e6:,.1f} MB are to be written, but only {free / 1e6:,.1f} MB are free in {folder};"
            " make room, or choose another place"
        )


def is_empty_folder(path: Path) -> bool:
    """Whether it is a folder in which there is nothing, not even hidden files."""
    return path.is_dir() and not any(path.iterdir())


def _check_absent(path: Path) -> None:
    if path.exists() and not is_empty_folder(path):
        raise CheckpointError(
            f"{path}: another program made it while this one was at work; what is there is kept, and what was written"
            " here is removed. Choose another place, or give --force to replace it"
        )


def _remove_folder(folder: Path) -> None:
    """Remove a folder. For a while, threads of a library whose writing has failed may still add files to it."""
    end = time.monotonic() + STRAGGLERS
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.01)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(path: Path, *, force: bool) -> None:
    """Remove temporary files and folders for `path` that no living process has locked.

    Raises:
        CheckpointError: a living process has locked one, and `force` is not given.
    """
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{_SUFFIX}"):
        with suppress(OSError):
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if temporary.is_dir():
                    shutil.rmtree(temporary)
                else:
                    temporary.unlink()
            except BlockingIOError as error:
                if not force:
                    raise CheckpointError(
                        f"{path}: another program is writing it just now; wait until it has ended, or choose another"
                        " place"
                    ) from error
            finally:
                os.close(descriptor)


@contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """For a moment no other process makes or names files here by these functions. Some file systems know no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Let errors of the system name the file that is to be made, not the temporary one; say what to do on a full disk.

    Errors that concern another file stay as they are.
    """
    try:
        yield
    except (OSError, CheckpointError) as error:
        cause = error.__cause__ if isinstance(error, CheckpointError) else error  # of a file in a folder, or its own
        if isinstance(cause, OSError) and cause.errno in _FULL:
            raise CheckpointError(
                f"{path}: cannot be written: {cause.strerror}. The incomplete file was removed; make room, or choose"
                " another place"
            ) from cause
        if isinstance(error, OSError) and error.errno and _is_temporary(error.filename, path):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _is_temporary(name: object, path: Path) -> bool:
    """Whether a file is a temporary one for `path`, or lies in a temporary folder for it."""
    prefix = str(path.parent / f".{path.name}.")
    return isinstance(name, (str, os.PathLike)) and os.path.abspath(name).startswith(os.path.abspath(prefix))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
