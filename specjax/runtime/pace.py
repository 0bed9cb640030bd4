"""How many rounds make a chunk, by the time that rounds take."""

from __future__ import annotations

AWAITED_SECONDS = 0.03
"""How long a chunk lasts that somebody waits for. So long users wait for more text, and newcomers for a seat."""

UNAWAITED_SECONDS = 0.2
"""How long others last. To start a chunk and to read it costs the host a millisecond or two, whatever the chunk holds,
and where the device is a CPU they share its cores."""

FINDING_SECONDS, GROWTH = 0.1, 0.25
"""How long at most those last that the number of drafts is chosen by, because it changes between chunks only; and by
what share of `AWAITED_SECONDS` each is longer than the one before as long as the number stays."""

USUAL = 8
"""Rounds of a chunk before it is known how long they take. After so many at most it ends when a row is done."""


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
        self._found: tuple[int, int] = (0, 0)  # the depth that was chosen last, and for how many chunks on end

    def rounds(self, depth: int, lasts: float = AWAITED_SECONDS) -> int:
        """The rounds of the next chunk, at least 1, if each has so many drafts and all together last so long."""
        seconds = None if self.steady else self._round_seconds.get(depth, self._latest)
        return max(1, min(int(lasts / seconds) if seconds else USUAL, self.most))

    def lasts(self, depth: int, *, awaited: bool, found: bool) -> float:
        """How many seconds the next chunk is to last. Call it once for each chunk, but for visits of another depth.

        Args:
            depth: how many drafts its rounds have.
            awaited: whether somebody waits for its end.
            found: whether this number is chosen by what chunks bring.
        """
        before, count = self._found
        self._found = depth, count + 1 if depth == before else 0
        if awaited:
            return AWAITED_SECONDS
        return min(FINDING_SECONDS, AWAITED_SECONDS * (1 + GROWTH * self._found[1])) if found else UNAWAITED_SECONDS

    def expected(self, rounds: int, depth: int) -> float:
        """How long so many rounds of a depth will take; 0 if none of this depth has been measured."""
        return rounds * self._round_seconds.get(depth, 0.0)

    def took(self, seconds: float, rounds: int, depth: int) -> None:
        """Note that so many rounds of a depth, at least one, took so many seconds."""
        self._round_seconds[depth] = self._latest = seconds / rounds
