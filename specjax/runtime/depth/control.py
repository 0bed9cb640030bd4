"""The choice of the depth: as many drafts as promise most tokens a second."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from specjax.decoding.settings import DraftConfig
from specjax.runtime.depth.costs import KEPT, SETTLED, Costs
from specjax.runtime.depth.rates import Rates

DEPTHS = (0, 1, 2, 3, 5, 8, 12)
"""The numbers of drafts among which is chosen; each is a program of its own."""

START = 3
"""The depth before anything is known."""

ADVANTAGE = 1.02
"""How many times as fast another depth must promise to be. Less is noise, and changing is not for nothing."""

VISIT_SHARE = 0.015
"""The share of the time that may be lost to visits of other depths, and to bringing the drafter up for them."""

LEAST_LOSS = 0.03
"""What a visit counts as at least, in usual chunks: a depth that is almost as fast is not visited all the time."""

NEARBY = 0.7
"""The share of the usual depth's speed that another one must promise to be visited while drafts are made: what is known
of costs may be wrong by so much, and dear visits would keep cheap ones waiting. Plain decoding is visited in any case:
nothing may be slower for long."""

DEBT = 5.0
"""Usual chunks that visits of depths of which too little is known may lose before there is credit for them. More are
lost only where times are never known, although nothing else runs. The debt is never more than twice that,
so that visits go on in time."""

HOPELESS = 8.0
"""How many times as dear visits count while no draft could pay, even if all of them were accepted."""

WORTH = 0.5
"""The gain, if all drafts were accepted, that makes visits worth their cost. They get the dearer the less there is to
gain."""

MEASURED_SECONDS = 0.01
"""Seconds of a visit that is to measure costs; what each chunk costs besides is then little."""

STALL = 4.0
"""What a visit is charged at most, in times of what its rounds should take: more is a stall of the machine."""

PROBES = 4
"""Visits in a row that only ask for acceptance; the next one measures costs again."""

PROBE_TRIALS = 4
"""First drafts that a visit tries at least, in all rows together, if only acceptance is asked for."""


class Choice(NamedTuple):
    """What the next chunk is to be.

    Attributes:
        depth: drafts of a round, at most.
        rounds: the most rounds of the chunk, None for as many as usual.
        visit: whether another depth than the usual one is looked at.
        timed: whether its time says what rounds cost; a chunk of very few rounds takes longer than they do.
    """

    depth: int
    rounds: int | None = None
    visit: bool = False
    timed: bool = True


def depths_up_to(most: int) -> tuple[int, ...]:
    """Those of `DEPTHS` below `most`, and `most`."""
    return (*(depth for depth in DEPTHS if depth < most), most)


class DepthControl:
    """Chooses the depth of each chunk of rounds, from what past chunks accepted and took.

    All rows of a chunk run one program, which costs the same whatever a row makes of it. So the depth is chosen for all
    rows together, the one with most tokens a second: the sum over rows of 1 + a1 + a1 a2 + ..., over the cost of a
    round. A row with a fixed number of drafts keeps it, and the depth is never less than the largest such number. Where
    all rows have fixed numbers it is the least such depth whose program has been built, else the largest of all.

    Other depths are visited between two chunks of the usual one. A depth of which too little is known is visited as
    soon as it promises an advantage, up to a `DEBT`. Further visits, which tell whether acceptance has risen while
    nothing was drafted and keep costs exact, may lose `VISIT_SHARE` of the time. A visit that measures costs lasts
    `MEASURED_SECONDS` or longer, because each chunk has a cost of its own, whatever its length.

    Nothing that happens in a chunk has a say in that chunk: the choice looks at earlier ones only.

    Attributes:
        depths: those that can be chosen.
        rates, costs: what is known. Costs that were measured before can be put in their place.
    """

    def __init__(self, most: int, rows: int) -> None:
        """
        Args:
            most: the most drafts of a round.
            rows: B.
        """
        self.depths = depths_up_to(most)
        self.rates, self.costs = Rates(rows, most), Costs()
        self._usual: int | None = None
        self._visited = False
        self._rounds = 1  # of the last usual chunk
        self._rows, self._speed = rows, math.inf  # that decode; tokens a unit of costs of the usual depth
        self._credit = 0.0  # what visits may lose, in the unit of costs
        self._probes = 0  # since the last measurement
        self._dear = 1.0  # how many times as dear the present visit is
        self._turns = list(self.depths)  # the one that was measured last comes last
        self._expected: tuple[Any, Mapping[int, DraftConfig], dict[int, float]] = None, {}, {}  # see `_tokens`

    def seat(self, row: int) -> None:
        """A new request has the row."""
        self.rates.forget(row)

    def saw(
        self,
        choice: Choice,
        n_drafted: Int[np.ndarray, "N B"],
        n_accepted: Int[np.ndarray, "N B"],
        seconds: float | None,
    ) -> None:
        """A chunk of N rounds has been read.

        Args:
            choice: what was chosen for it.
            n_drafted, n_accepted: drafts that were verified and that stood; rows that are not to count have zeros.
            seconds: how long it took; None if anything else ran meanwhile.
        """
        rounds = len(n_drafted)
        self.rates.add(n_drafted, n_accepted)
        if choice.timed and seconds is not None:
            self.costs.add(choice.depth, seconds / rounds, visit=choice.visit)
        if choice.visit:
            self._charge(choice, rounds, int(n_accepted.sum()), seconds)
        elif self.costs.samples(choice.depth):
            self._rounds = rounds
            self._credit += VISIT_SHARE * rounds * self.costs.of(choice.depth)

    def lost(self, seconds: float) -> None:
        """Take seconds from the credit that visits cost besides their rounds. They count as dear as the visit."""
        self._pay((self._dear if self._visited else 1.0) * self.costs.in_units(seconds))

    def _charge(self, visit: Choice, rounds: int, accepted: int, seconds: float | None) -> None:
        """Take from the credit what the visit took longer than usual rounds would have taken for as many tokens."""
        expected = rounds * self.costs.of(visit.depth)
        took = expected if seconds is None else min(self.costs.in_units(seconds), STALL * expected)
        loss = took - (rounds * self._rows + accepted) / self._speed
        self._pay(self._dear * max(loss, LEAST_LOSS * self._usual_chunk()))
        measured = visit.timed and seconds is not None
        self._probes = 0 if measured else self._probes + 1
        if measured:
            self._turns.remove(visit.depth)
            self._turns.append(visit.depth)

    def _pay(self, cost: float) -> None:
        self._credit = max(self._credit - cost, -2 * DEBT * self._usual_chunk())

    def _usual_chunk(self) -> float:
        """What a usual chunk costs."""
        return self._rounds * self.costs.of(self._usual or 0)

    def choose(
        self, wants: Mapping[int, DraftConfig], ready: Collection[int], *, may_build: bool, alone: bool
    ) -> Choice:
        """The next chunk.

        Args:
            wants: what each row that decodes wants.
            ready: the depths whose programs have been built.
            may_build: whether another program may be built.
            alone: whether nothing else runs beside the chunk, so that its time can be known.
        """
        allowed = self._allowed(wants)
        if not any(want.auto for want in wants.values()):
            return Choice(next((depth for depth in allowed if depth in ready), self.depths[-1]))
        able = [depth for depth in allowed if may_build or depth in ready]
        speed = self._speed_of(allowed, wants)
        self._usual = usual = self._best(allowed, speed, ready)
        self._rows, self._speed = len(wants), speed[usual]
        visit = None if self._visited else self._visit(usual, able, speed, ready, alone=alone)
        self._visited = visit is not None
        return visit or Choice(usual)

    def foreseen(self, wants: Mapping[int, DraftConfig]) -> int:
        """The depth that `choose` begins with, where no program is ready yet."""
        if not any(want.auto for want in wants.values()):
            return self.depths[-1]
        allowed = self._allowed(wants)
        return self._best(allowed, self._speed_of(allowed, wants), ready=())

    def _allowed(self, wants: Mapping[int, DraftConfig]) -> list[int]:
        """Depths that are enough for the rows whose depth is given."""
        floor = max((want.n_max for want in wants.values() if not want.auto), default=0)
        return [depth for depth in self.depths if depth >= floor]

    def _speed_of(self, depths: list[int], wants: Mapping[int, DraftConfig]) -> dict[int, float]:
        """Expected tokens of all rows for what a round of each depth costs."""
        tokens = self._tokens(wants)
        return {depth: tokens[depth] / self.costs.of(depth) for depth in depths}

    def _best(self, allowed: list[int], speed: Mapping[int, float], ready: Collection[int]) -> int:
        """The usual depth from now on."""
        known = [depth for depth in allowed if self.costs.samples(depth) >= SETTLED and depth in ready]
        if self._usual in allowed:
            best = max(known, key=speed.__getitem__, default=self._usual)
            return best if speed[best] > ADVANTAGE * speed[self._usual] else self._usual
        start = [depth for depth in allowed if depth <= START]
        remembered = [depth for depth in allowed if self.costs.samples(depth) >= SETTLED]
        return max(remembered, key=speed.__getitem__, default=start[-1] if start else allowed[0])

    def _visit(
        self, usual: int, able: list[int], speed: Mapping[int, float], ready: Collection[int], *, alone: bool
    ) -> Choice | None:
        """Another depth that is to be looked at, if it is worth it now. What is only to be measured waits for a chunk
        whose time can be known.
        """
        others = [depth for depth in able if depth != usual and speed[depth] > 0]
        if not others or not self.costs.samples(usual) or not self.costs.timed:
            return None
        self._dear = 1.0
        best = max(others, key=speed.__getitem__)
        new = self.costs.samples(best) < SETTLED or best not in ready  # it may be known from other processes
        teaches = alone or best not in ready  # the first chunk of a program is not timed anyway
        promising = speed[best] > ADVANTAGE * speed[usual]
        if new and teaches and promising and self._credit > -DEBT * self._usual_chunk():
            return self._measuring(best)
        tried = [depth for depth in self._turns if depth in others and self.costs.samples(depth)]
        if not tried or (usual and not alone):  # while drafts are made, their acceptance is known without visits
            return None
        if usual:
            tried = [depth for depth in tried if depth == 0 or speed[depth] > NEARBY * speed[usual]] or tried
        visit = self._next_visit(usual, tried)
        assert visit.rounds is not None
        time = visit.rounds * self.costs.of(visit.depth)
        return visit if self._credit > max(time * (1 - speed[visit.depth] / speed[usual]), 0.0) else None

    def _measuring(self, depth: int) -> Choice:
        """A visit that says what rounds cost."""
        return Choice(depth, math.ceil(MEASURED_SECONDS / self.costs.seconds(depth)), visit=True)

    def _next_visit(self, usual: int, tried: list[int]) -> Choice:
        """The visit for which credit is saved.

        Args:
            usual: the usual depth.
            tried: others of which something is known; the one that was measured last comes last.
        """
        unsure = [depth for depth in tried if self.costs.samples(depth) < KEPT]
        if usual:  # all depths are judged by the acceptance of its drafts
            return self._measuring((unsure or tried)[0])
        least = min(tried)
        rounds = -(-PROBE_TRIALS // self._rows)
        gain = max(self._rows * (depth + 1) / (self._speed * self.costs.of(depth)) for depth in tried) - 1
        self._dear = max(1.0, HOPELESS * (1 - max(gain, 0.0) / WORTH))
        if rounds * self.costs.seconds(least) > MEASURED_SECONDS:
            return Choice(least, rounds, visit=True)
        if gain > 0 and least not in unsure and self._probes < PROBES:
            return Choice(least, rounds, visit=True, timed=False)
        return self._measuring(least)

    def _tokens(self, wants: Mapping[int, DraftConfig]) -> dict[int, float]:
        """Expected tokens of a round of each depth, of all rows; those of the last time if nothing is new since."""
        believed, (before, of_rows, tokens) = self.rates.believed(), self._expected
        if believed is before and wants == of_rows:
            return tokens
        reached = np.cumprod(believed[list(wants)], axis=1)
        most = np.array([want.n_max for want in wants.values()])
        place = np.arange(reached.shape[1])
        columns = np.concatenate([[0.0], np.cumsum(np.where(place < most[:, None], reached, 0).sum(axis=0))])
        tokens = {depth: len(wants) + float(columns[depth]) for depth in self.depths}
        self._expected = believed, dict(wants), tokens
        return tokens
