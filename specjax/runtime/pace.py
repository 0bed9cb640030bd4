"""How many rounds make a chunk, by the time that rounds take."""

from __future__ import annotations

PATIENCE = 0.25
"""Seconds after which a user wants to see more text. Where rounds are slow, fewer of them make a chunk."""

BRIEF = 0.01
"""Seconds that a chunk of fast rounds lasts. To start a chunk and to read it costs the host about half a millisecond,
whatever the chunk holds."""

USUAL = 8
"""Rounds of a chunk if neither `PATIENCE` nor `BRIEF` says something else. A longer one ends when a row is done."""


DEFAULT_ROUNDS = 128
"""The most rounds of a chunk, unless something else is asked for."""


class Pace:
    """Measures rounds of each depth, and says how many should run before the host looks again.

    Attributes:
        most: the most rounds of a chunk.
        steady: whether all chunks are as long as usual, because several processes must choose the same.
    """

    def __init__(self, most: int, *, steady: bool = False) -> None:
        """
        Args:
            most, steady: see the attributes.
        """
        self.most, self.steady = most, steady
        self._round_seconds: dict[int, float] = {}  # by depth
        self._latest: float | None = None  # of any depth
        self._last_look = 0.0

    def rounds(self, depth: int, *, others_wait: bool) -> int:
        """The rounds of the next chunk, at least 1.

        Args:
            depth: drafts of a round.
            others_wait: whether requests wait for a seat. A row that is done idles until its chunk ends, so chunks are
                then no longer than usual.
        """
        chosen = USUAL
        seconds = None if self.steady else self._round_seconds.get(depth, self._latest)
        if seconds:
            patient = int(PATIENCE / seconds)
            chosen = min(USUAL, patient)
            if not others_wait:
                chosen = max(chosen, int(BRIEF / seconds))
        return max(1, min(chosen, self.most))

    def since(self, now: float) -> float:
        """Seconds since the last look."""
        return now - self._last_look

    def left_out(self, seconds: float) -> None:
        """So many seconds since the last look have gone to something else; they are not counted."""
        self._last_look += seconds

    def looked(self, now: float, rounds: int = 0, depth: int = 0) -> float:
        """Note that the host has read so many rounds at this time, in seconds. Reads of 0 rounds only tell the time.

        Returns:
            The seconds since the last look.
        """
        since = self.since(now)
        if rounds:
            self._round_seconds[depth] = self._latest = since / rounds
        self._last_look = now
        return since
