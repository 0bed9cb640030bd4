"""The training text: the source files of the running interpreter's own standard library, split by file.

Every machine that can run the recipe has this text already. It is licensed under the PSF License Agreement; nothing of
it is copied into the project. The split is by whole files, so that held-out text comes from modules that the model has
never seen: a file is held out when it is named in `HELD_OUT`, or when the hash of its path falls into the held-out
share.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

HELD_OUT = frozenset(
    {
        "bisect.py",
        "calendar.py",
        "concurrent/futures/thread.py",
        "configparser.py",
        "csv.py",
        "fnmatch.py",
        "heapq.py",
        "json/encoder.py",
        "queue.py",
        "sched.py",
        "shlex.py",
        "textwrap.py",
        "unittest/suite.py",
        "wsgiref/simple_server.py",
    }
)
"""Recognisable modules that are always held out, as paths below the standard library's folder."""

HASHED_SHARE = 0.02
"""Share of the remaining files that is held out by the hash of their path."""

EXCLUDED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "lib-dynload", "test", "tests", "idle_test", "pydoc_data"}
)
"""Folders that are no part of the library itself, are its tests, or are generated text."""

EXCLUDED_PATTERNS = (
    "_sysconfigdata*.py",  # build settings of this machine
    "config-*/*.py",
    "encodings/cp*.py",  # generated tables of characters, here and below
    "encodings/iso8859_*.py",
    "encodings/koi8_*.py",
    "encodings/mac_*.py",
    "encodings/aliases.py",
    "encodings/hp_roman8.py",
    "encodings/kz1048.py",
    "encodings/palmos.py",
    "encodings/ptcp154.py",
    "encodings/tis_620.py",
    "html/entities.py",
    "stringprep.py",
)

LONGEST_LINE = 1000
"""A file with a longer line holds a data literal, not source text."""


@dataclass(frozen=True)
class Document:
    """One source file: its path below the library's folder, and its text."""

    path: str
    text: str

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Provenance:
    """Where a corpus came from, for a model card, and a hash of its paths and texts."""

    source: str
    python_version: str
    sha256: str
    train_files: int
    train_bytes: int
    held_out_files: int
    held_out_bytes: int
    held_out_paths: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The fields as plain values that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Corpus:
    """Documents to train on, and documents of other modules to evaluate on; both sorted by path."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    source: str = "Python standard library source files (PSF License Agreement)"

    @property
    def provenance(self) -> Provenance:
        """Python version, hash, files and bytes of this corpus."""
        texts = {"train": [asdict(each) for each in self.train], "held_out": [asdict(each) for each in self.held_out]}
        return Provenance(
            source=self.source,
            python_version=platform.python_version(),
            sha256=hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
            train_files=len(self.train),
            train_bytes=sum(document.num_bytes for document in self.train),
            held_out_files=len(self.held_out),
            held_out_bytes=sum(document.num_bytes for document in self.held_out),
            held_out_paths=tuple(document.path for document in self.held_out),
        )


def is_held_out(path: str) -> bool:
    """Whether the file at `path` (below the library's folder, with forward slashes) belongs to the held-out split."""
    digest = hashlib.sha256(path.encode()).digest()
    return path in HELD_OUT or int.from_bytes(digest[:8], "big") < HASHED_SHARE * 2**64


def is_source(path: str) -> bool:
    """Whether the file at `path` is hand-written library source by its name."""
    parts = PurePosixPath(path)
    return not EXCLUDED_FOLDERS.intersection(parts.parts) and not any(parts.match(p) for p in EXCLUDED_PATTERNS)


def standard_library() -> Corpus:
    """The corpus of the running interpreter.

    Raises:
        FileNotFoundError: when the interpreter ships no source files (a zipped or frozen library).
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents = list(read_documents(root))
    if not documents:
        raise FileNotFoundError(
            f"no standard library source files below {root}; use an interpreter that is installed with its library"
        )
    return Corpus(
        train=tuple(document for document in documents if not is_held_out(document.path)),
        held_out=tuple(document for document in documents if is_held_out(document.path)),
    )


def text_files(paths: Sequence[Path]) -> Corpus:
    """The corpus of files, and of all files in folders, that are UTF-8 text; every twentieth is held out.

    Raises:
        FileNotFoundError: there are fewer than two such files.
    """
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    documents = []
    for file in files:
        with suppress(UnicodeDecodeError):
            if file.is_file() and (text := file.read_bytes().decode().replace("\r\n", "\n")).strip():
                documents.append(Document(str(file), text))
    if len(documents) < 2:
        raise FileNotFoundError(
            f"{len(documents)} text files in {', '.join(map(str, paths))}; give at least two, one of which is held out"
        )
    return Corpus(
        train=tuple(document for index, document in enumerate(documents) if index % 20),
        held_out=tuple(documents[::20]),
        source=", ".join(map(str, paths)),
    )


def read_documents(root: Path) -> Iterable[Document]:
    """The source files below `root` in order of their paths, without those that are not UTF-8, empty, or data."""
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if not is_source(path):
            continue
        try:
            text = file.read_bytes().decode().replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        if text.strip() and max(map(len, text.splitlines())) <= LONGEST_LINE:
            yield Document(path, text)
