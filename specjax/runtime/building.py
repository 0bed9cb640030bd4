"""Which programs have been built, and how long building took. This time is not counted elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from specjax.runtime.notices import announced
from specjax.runtime.request import Job


class Building:
    """The programs of an engine.

    Attributes:
        seconds: spent on building so far.
    """

    def __init__(self, compiled: set[tuple] | None = None) -> None:
        """
        Args:
            compiled: keys of programs that have run before; new ones are added. Engines of one model share it.
        """
        self.seconds = 0.0
        self._compiled: set[tuple] = set() if compiled is None else compiled

    def clock(self) -> float:
        """Seconds, without those spent on building."""
        return time.perf_counter() - self.seconds

    def first_time(self, *key: Any) -> bool:
        """Whether the program of this key has not been built yet; from now on it counts as built."""
        seen = key in self._compiled
        self._compiled.add(key)
        return not seen

    @contextmanager
    def building(self, what: str, jobs: Iterable[Job]) -> Iterator[None]:
        """Take the time of building a program, for which these jobs wait. Say so if it takes long."""
        begin = time.perf_counter()
        try:
            with announced(f"compiling the program for {what}; this is done once for a model and its sizes"):
                yield
        finally:
            seconds = time.perf_counter() - begin
            self.seconds += seconds
            for job in jobs:
                job.timings.compile += seconds
