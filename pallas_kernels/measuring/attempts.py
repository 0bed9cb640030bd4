"""What is being tried now, on disk: so the next process knows what this one never got past."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pallas_kernels.files import replace_text

_LEFT_OUT = "left out: "


class Attempts:
    """Names of what is being tried, one in a line of a file. They stay there if the process crashes or is killed.

    Threads may share one.

    Attributes:
        guilty: what processes before this one never got past, until it is tried again and ends.
        suspects: what the last one tried side by side when it crashed. One after the other they show which it was.
    """

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: the file, which exists only while there is something to name.
        """
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        last = frozenset(line for line in lines if not line.startswith(_LEFT_OUT))
        self.guilty = {line.removeprefix(_LEFT_OUT) for line in lines} - (last if len(last) > 1 else frozenset())
        self.suspects = last - self.guilty
        self._begun: dict[str, float] = {}

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """The name is in the file until the block ends, however it ends."""
        with self._lock:
            self._begun[name] = time.monotonic()
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._begun.pop(name, None)
                self.guilty.discard(name)
                self._write()

    def forgive(self, seconds: float) -> None:
        """Take out what began fewer seconds ago: it does not hang, but is interrupted."""
        with self._lock:
            since = time.monotonic() - seconds
            self._begun = {name: begin for name, begin in self._begun.items() if begin <= since}
            self._write()

    def _write(self) -> None:
        lines = [*(f"{_LEFT_OUT}{name}" for name in sorted(self.guilty - self._begun.keys())), *self._begun]
        if lines:
            replace_text(self._path, "".join(f"{line}\n" for line in lines))
        else:
            self._path.unlink(missing_ok=True)
