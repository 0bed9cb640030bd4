"""Result files that a killed run can be resumed from: one JSON line for each text, and the settings beside them."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from checkpoints.atomic import write_text
from checkpoints.file_errors import named
from checkpoints.gguf.file import parts_of
from specjax.errors import SpecjaxError
from specjax.evaluation.prompts import Key

SAMPLES, SAMPLE_BYTES = 64, 2**16
"""How much of a model file is looked at to know it again."""


class ResultFile:
    """A result file: it holds the results of earlier runs with the same settings, and takes new ones. A context
    manager.

    The settings stand in a file of their own, `<name>.settings.json`, so that every line of the result file is a
    result. Each line is on its way to the disk before the next result is looked at. A last line without its end, which
    a killed run leaves, is cut off. While the context is entered, the file is locked against other evaluations.

    Attributes:
        path, settings_path: the two files.
        settings: of the run, as they are written.
        results: lines that are there already, by prompt and sample.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Read what is there; nothing is written before the context is entered.

        Raises:
            SpecjaxError: the file belongs to another run (the differing settings are named), or is no result file.
            OSError: it cannot be read.
        """
        self.path = path
        self.settings_path = _settings_path(path)
        self.results: dict[Key, dict[str, Any]] = {}
        self.settings = json.loads(json.dumps(settings))
        self._bytes = self._complete_bytes = 0
        if path.exists() and path.stat().st_size:
            self._check_settings()
            self._read()

    @classmethod
    def begun(cls, path: Path) -> Self:
        """The result file of an earlier run, with the settings that it had.

        Raises:
            SpecjaxError: there is none, or it is damaged.
            OSError: it cannot be read.
        """
        path.stat()  # the settings alone are no result file
        if not path.is_file():
            raise SpecjaxError(f"{path} is not a file; give the result file of an evaluation")
        return cls(path, _settings_beside(path, "give the result file of an evaluation"))

    def _check_settings(self) -> None:
        remedy = f"choose another output, or delete {self.path} to start over"
        if found := differences(_settings_beside(self.path, remedy), self.settings):
            raise SpecjaxError(f"{self.path} was begun with other settings: {'; '.join(found)}. {remedy}")

    def _read(self) -> None:
        data = self.path.read_bytes()
        self._bytes = len(data)
        self._complete_bytes = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._complete_bytes].split(b"\n")[:-1], 1):
            try:
                result = json.loads(line)
                self.results[key_of(result)] = result
            except (ValueError, TypeError, KeyError) as error:
                raise SpecjaxError(f"{self.path}:{number} is not a result: {line[:80]!r}") from error

    def __enter__(self) -> Self:
        """
        Raises:
            SpecjaxError: another evaluation writes the file, or has written it since it was read.
        """
        self._file = self.path.open("ab")
        if not _lock(self._file) or self._file.tell() != self._bytes:
            self._file.close()
            raise SpecjaxError(
                f"{self.path} is being written by another evaluation; wait until it has ended, or choose another output"
            )
        write_text(self.settings_path, json.dumps(self.settings, indent=1) + "\n")
        self._file.truncate(self._complete_bytes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with named(self.path):
            self._file.close()

    def append(self, result: Mapping[str, Any]) -> None:
        """Write a result line.

        Raises:
            OSError: it cannot be written; the error names the file.
        """
        with named(self.path):
            self._file.write(json.dumps(result).encode() + b"\n")
            self._file.flush()
        self.results[key_of(result)] = dict(result)


def _settings_path(path: Path) -> Path:
    return path.with_name(path.name + ".settings.json")


def _settings_beside(path: Path, remedy: str) -> dict[str, Any]:
    beside = _settings_path(path)
    try:
        return json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecjaxError(
            f"{path} exists, but not {beside.name}, so it was not begun by an evaluation: {remedy}"
        ) from None
    except ValueError as error:
        raise SpecjaxError(f"{beside} is damaged ({error}): {remedy}") from error


def key_of(result: Mapping[str, Any]) -> Key:
    """The prompt and the sample of a result line. Lines with an error have no sample."""
    return result["id"], result.get("sample", 0)


def _lock(file: BinaryIO) -> bool:
    """Try to lock the file, and say whether that worked. The lock ends when the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def differences(earlier: Any, now: Any, name: str = "") -> list[str]:
    """Settings that differ, as "draft was 3, is 0"."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*earlier, *now])
        lists = (differences(earlier.get(key), now.get(key), f"{name}.{key}" if name else key) for key in keys)
        return [line for lines in lists for line in lines]
    return [] if earlier == now else [f"{name} was {_shown(earlier)}, is {_shown(now)}"]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def fingerprint_of_model(path: Path) -> dict[str, Any]:
    """Marks that tell one model file or folder from another: names, sizes and samples of the contents.

    Copies of a model on other machines have the same marks, whatever the times of change.
    """
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else parts_of(path)
    marks = [f"{file.name} {file.stat().st_size} {_samples(file)}" for file in files]
    return {"name": path.name, "files": fingerprint_of_bytes("\n".join(marks).encode())}


def _samples(path: Path) -> str:
    """A fingerprint of a file's first bytes, its last ones, and those of places between them at equal distances."""
    with path.open("rb") as file:
        distance = max(path.stat().st_size - SAMPLE_BYTES, 0) / (SAMPLES - 1)
        sampled = b""
        for place in range(SAMPLES):
            file.seek(int(place * distance))
            sampled += file.read(SAMPLE_BYTES)
    return fingerprint_of_bytes(sampled)


def fingerprint_of_bytes(data: bytes) -> str:
    """The first 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
