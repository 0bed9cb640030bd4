"""What rounds of each depth take, in relation to each other."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

SETTLED = 3
"""Comparisons that make a cost known."""

KEPT = 9
"""Comparisons of a depth that are kept. The median of them counts."""

RECENT = 7
"""Chunks of the usual depth whose median is the present speed. One that stalls, such as a first one, has no say."""

HOPE = 0.95
"""Costs that are not known are believed to be a little lower than those of other depths suggest, so that they become
known."""


class Costs:
    """Costs of a round by depth. Their unit does not matter: only their ratios decide.

    The speed of a machine drifts, and contexts grow, at all depths alike. So chunks of the usual depth tell the present
    speed, and chunks of other depths among them are compared with it.
    """

    def __init__(self, known: Mapping[int, float] | None = None) -> None:
        """
        Args:
            known: costs that were measured before, by depth.
        """
        self._samples = {depth: deque([cost] * SETTLED, KEPT) for depth, cost in (known or {}).items()}
        self._medians = dict(known or {})
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds of the unit in chunks of the usual depth
        self._scale = 1.0  # their median
        self._usual: int | None = None
        self._since = 0

    def add(self, depth: int, seconds: float, *, visit: bool = False) -> None:
        """Take in what a round took, the mean of a chunk.

        Args:
            depth: of the rounds.
            seconds: of one of them.
            visit: whether the usual depth, which ran before, will go on afterwards.
        """
        if not visit and depth != self._usual:
            self._usual, self._since = depth, 0
        if visit or (self.timed and self._since < SETTLED):
            self._keep(depth, [seconds / self._scale])
        else:
            if not self.samples(depth):  # it says what the unit is, which is that of the others if they are known
                self._keep(depth, [self.of(depth) if self._medians else 1.0] * SETTLED)
            self._recent.append(seconds / self.of(depth))
            self._scale = statistics.median(self._recent)
        self._since += not visit

    def _keep(self, depth: int, costs: list[float]) -> None:
        samples = self._samples.setdefault(depth, deque(maxlen=KEPT))
        samples.extend(costs)
        self._medians[depth] = statistics.median(samples)

    def in_units(self, seconds: float) -> float:
        """Seconds in the unit of costs, at the present speed."""
        return seconds / self._scale

    @property
    def timed(self) -> bool:
        """Whether enough has been measured here, and not only remembered, for seconds to be known."""
        return len(self._recent) >= SETTLED

    def seconds(self, depth: int) -> float:
        """What a round takes at the present speed."""
        return self.of(depth) * self._scale

    def samples(self, depth: int) -> int:
        """How many comparisons the cost rests on."""
        return len(self._samples.get(depth, ()))

    def known(self) -> dict[int, float]:
        """The costs that are known, by depth."""
        return {depth: self.of(depth) for depth in sorted(self._samples) if self.samples(depth) >= SETTLED}

    def of(self, depth: int) -> float:
        """The cost of a round, as measured or as others suggest. One that nothing suggests is infinite."""
        if depth in self._medians:
            return self._medians[depth]
        known = sorted(self._medians)
        if len(known) < 2:
            return HOPE * self.of(known[0]) * (depth + 1) / (known[0] + 1) if known else float("inf")
        above = next((index for index, each in enumerate(known) if each > depth), len(known) - 1)
        left, right = known[max(above - 1, 0)], known[max(above, 1)]
        low, high = self.of(left), self.of(right)
        line = low + (high - low) * (depth - left) / (right - left)
        return HOPE * max(line, min(low, high) * min(1.0, (depth + 1) / (left + 1)))
