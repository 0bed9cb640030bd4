"""Which programs have been built, and how long building took. This time is not counted elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from specjax.runtime.notices import announced
from specjax.runtime.request import Job


@dataclass
class Effort:
    """Seconds that rounds ran, and that building their programs took."""

    rounds: float = 0.0
    building: float = 0.0

    @property
    def balanced(self) -> bool:
        """Whether a further program may be built, so that building never takes more than about half of the time."""
        return self.rounds >= self.building


@dataclass
class Experience:
    """What engines of one model have learnt, and tell each other.

    Attributes:
        compiled: keys of programs that have run before.
        costs: what rounds of each depth cost, see `Costs.known`, by the keys of engines.
        effort: time spent on rounds and on their programs.
        measured: keys of the kernels' choices that were measured for them, see `measure_kernels`.
    """

    compiled: set[tuple] = field(default_factory=set)
    costs: dict[tuple, dict[int, float]] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    measured: set[str] = field(default_factory=set)


class Building:
    """The programs of an engine.

    Attributes:
        seconds: spent on building so far.
    """

    def __init__(self, compiled: set[tuple]) -> None:
        """
        Args:
            compiled: keys of programs that have run before; new ones are added.
        """
        self.seconds = 0.0
        self._compiled = compiled
        self._ahead: dict[tuple, threading.Thread] = {}

    def clock(self) -> float:
        """Seconds, without those spent on building."""
        return time.perf_counter() - self.seconds

    def built(self, *key: Any) -> bool:
        """Whether the program of this key has been built."""
        return key in self._compiled

    def ahead(self, compile: Callable[[], object], *key: Any) -> None:
        """Compile the program of this key beside what is built meanwhile. The call that builds it waits for the end."""

        def run() -> None:
            with suppress(Exception):  # the call will meet it too, and tell
                compile()

        if key not in self._ahead and not self.built(*key):
            self._ahead[key] = thread = threading.Thread(target=run)
            thread.start()

    @contextmanager
    def at_first(self, what: str, jobs: Iterable[Job], *key: Any) -> Iterator[None]:
        """Around a call of the program of this key. If it has not been built yet, the call builds it: take the time,
        for which these jobs wait, and say so if it takes long.
        """
        if self.built(*key):
            yield
            return
        begin = time.perf_counter()
        try:
            with announced(f"compiling the program for {what}; this is done once for a model and its sizes"):
                if thread := self._ahead.pop(key, None):
                    thread.join()
                yield
            self._compiled.add(key)
        finally:
            seconds = time.perf_counter() - begin
            self.seconds += seconds
            for job in jobs:
                job.timings.compile += seconds
