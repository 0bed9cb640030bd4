"""Who may use the device, of processes that try implementations side by side: all while they compile, one to time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_BETWEEN = 0.02
"""Seconds between two looks at the lock."""


class Turns:
    """A lock on a file. A process that dies gives it back.

    Compilers use the device too, because they try what is fast. So nobody times before all have compiled.
    """

    def __init__(self, path: str) -> None:
        """
        Args:
            path: the file, which exists; "" if this process is alone.
        """
        self._file = Path(path).open("r+") if path else None  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self._file is None

    def with_others(self, seconds: float = 1.0) -> Iterator[None]:
        """Ends when nobody times; from then on nobody does until this process gives way. Yields now and then."""
        return self._waiting(fcntl.LOCK_SH, seconds)

    def without_others(self, seconds: float = 1.0) -> Iterator[None]:
        """Ends when it is this process's turn to time; yields now and then until it is."""
        return self._waiting(fcntl.LOCK_EX, seconds)

    def _waiting(self, kind: int, seconds: float) -> Iterator[None]:
        begin = time.monotonic()
        while self._file is not None:
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)  # gives back what it had, also in vain
                return
            except BlockingIOError:
                time.sleep(_BETWEEN)
            if time.monotonic() - begin > seconds:
                begin = time.monotonic()
                yield
