"""Whose turn it is on the device, of processes that compile side by side."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

_BETWEEN = 0.01
"""Seconds between two looks."""


class Turns:
    """A lock on a file: what a process is timing, no other disturbs. A process that dies gives it back."""

    def __init__(self, path: str) -> None:
        """
        Args:
            path: the file, which exists; "" if this process is alone.
        """
        self._file = Path(path).open() if path else None  # noqa: SIM115  # open as long as the process

    def waiting(self, seconds: float = 1.0) -> Iterator[None]:
        """Ends when it is this process's turn; yields now and then until it is."""
        begin = time.monotonic()
        while self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(_BETWEEN)
            if time.monotonic() - begin > seconds:
                begin = time.monotonic()
                yield

    def end(self) -> None:
        """It is another's turn."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
