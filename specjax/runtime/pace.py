"""How many rounds make a chunk, by the time that rounds take."""

from __future__ import annotations

AWAITED_SECONDS = 0.03
"""How long a chunk lasts that somebody waits for. So long users wait for more text, and newcomers for a seat."""

UNAWAITED_SECONDS = 0.2
"""How long others last. To start a chunk and to read it costs the host a millisecond or two, whatever the chunk holds,
and where the device is a CPU they share its cores."""

USUAL = 8
"""Rounds of a chunk before it is known how long they take. A longer one ends when a row is done."""


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

    def rounds(self, depth: int, *, awaited: bool) -> int:
        """The rounds of the next chunk, at least 1.

        Args:
            depth: how many drafts each has.
            awaited: whether somebody waits for its end.
        """
        seconds = None if self.steady else self._round_seconds.get(depth, self._latest)
        lasts = AWAITED_SECONDS if awaited else UNAWAITED_SECONDS
        return max(1, min(int(lasts / seconds) if seconds else USUAL, self.most))

    def expected(self, rounds: int, depth: int) -> float:
        """How long so many rounds of a depth will take; 0 if none of this depth has been measured."""
        return rounds * self._round_seconds.get(depth, 0.0)

    def took(self, seconds: float, rounds: int, depth: int) -> None:
        """Note that so many rounds of a depth, at least one, took so many seconds."""
        self._round_seconds[depth] = self._latest = seconds / rounds
