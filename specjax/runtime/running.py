"""A chunk of rounds on the device: when it began and ended, as far as anybody has looked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


class Running:
    """Takes the time of a chunk that runs beside the host.

    Its end is known exactly if the host waited for it, and otherwise as exactly as the host has looked.
    """

    def __init__(self, result: jax.Array, clock: Callable[[], float], began: float, expected: float) -> None:
        """
        Args:
            result: of the chunk, which has been started.
            clock: tells the seconds now.
            began: when the host started it.
            expected: how long the chunk will take; 0 if that is not known.
        """
        self._result: Any = result  # the types of jax do not name `is_ready`
        self._clock, self._began, self._expected = clock, began, expected
        self._seen = clock()  # when it was seen running
        self._end: float | None = None

    def goes_on(self) -> bool:
        """Look whether the chunk has not ended."""
        if self._end is None:
            now = self._clock()
            if self._result.is_ready():
                self._end = now
            else:
                self._seen = now
        return self._end is None

    def wait(self) -> float:
        """The time of its end, which is awaited."""
        if self.goes_on():
            jax.block_until_ready(self._result)
            self._end = self._seen = self._clock()
        assert self._end is not None
        return self._end

    def left(self, free: float) -> float:
        """An estimate of how long the chunk still takes; 0 if it has ended, or nothing is known.

        Args:
            free: when the device was done with what it did before.
        """
        return max(0.0, max(self._began, free) + self._expected - self._clock()) if self.goes_on() else 0.0

    def seconds(self, free: float) -> float:
        """How long the chunk took; it is awaited. See `left`."""
        return self.wait() - max(self._began, free)

    @property
    def doubt(self) -> float:
        """By how many seconds the chunk may have ended before the end that is known."""
        return self.wait() - self._seen
