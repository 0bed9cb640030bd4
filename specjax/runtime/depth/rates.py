"""How often drafts are accepted, for each row and each place in a round, as moving averages."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

MEMORY = 32
"""Trials that an average looks back on."""

COMMON_MEMORY = 256
"""The same for the average of all rows, from which new requests start."""

PRIOR_TRIALS = 4.0
"""The weight of what is believed of a row before anything is known of it, in trials."""

BELIEF = 0.75
"""The acceptance of a first draft that is believed before anything is known."""

SURPRISE = 3.0
"""Standard deviations by which the latest chunks must differ from an average for what was known before to be
forgotten."""

LATELY = 0.75
"""The weight in this of a chunk, relative to the one after it."""


class Rates:
    """Shares of accepted drafts among those whose predecessors in the round were all accepted.

    A row's averages start afresh with each request. What is believed of the first draft before trials are made is the
    average of all rows; what is believed of draft j is what is known of draft j - 1.

    Attributes:
        hits, trials: [B, K] of each row; older ones count less.
        common_hits, common_trials: of first drafts in all rows.
    """

    def __init__(self, rows: int, most: int) -> None:
        """
        Args:
            rows: B.
            most: K, the most drafts of a round.
        """
        self.hits, self.trials = np.zeros((rows, most)), np.zeros((rows, most))
        self.common_hits, self.common_trials = BELIEF * PRIOR_TRIALS, PRIOR_TRIALS
        self._excess, self._variance = np.zeros((rows, most)), np.zeros((rows, most))
        self._believed: Float[np.ndarray, "B K"] | None = None  # as it was last computed

    def forget(self, row: int) -> None:
        """Begin with a new request."""
        if not self.trials[row].any():  # then nothing changes, and what is believed need not be computed again
            return
        self._believed = None
        self.hits[row] = self.trials[row] = 0
        self._excess[row] = self._variance[row] = 0

    def add(self, n_drafted: Int[np.ndarray, "N B"], n_accepted: Int[np.ndarray, "N B"]) -> None:
        """Take in N rounds.

        Only drafts that were reached count: those after the first rejected one say nothing, and are not looked at. For
        block verification, which judges drafts together, this is an approximation.

        Args:
            n_drafted: drafts that were verified.
            n_accepted: drafts that stood.
        """
        if not n_drafted.any():
            return
        place = np.arange(self.trials.shape[1])
        drafted, accepted = n_drafted[..., None], n_accepted[..., None]
        trials = ((drafted > place) & (accepted >= place)).sum(axis=0)
        hits = (accepted > place).sum(axis=0)
        self._forget_what_is_contradicted(hits, trials)
        self._believed = None
        keep = (1 - 1 / MEMORY) ** trials
        self.hits, self.trials = self.hits * keep + hits, self.trials * keep + trials
        keep_common = (1 - 1 / COMMON_MEMORY) ** trials[:, 0].sum()
        self.common_hits = self.common_hits * keep_common + hits[:, 0].sum()
        self.common_trials = self.common_trials * keep_common + trials[:, 0].sum()

    def _forget_what_is_contradicted(self, hits: Int[np.ndarray, "B K"], trials: Int[np.ndarray, "B K"]) -> None:
        """Acceptance can change at once, with the text. Averages would follow slowly, so they begin anew.

        All rows together are looked at too, because each of them alone may have too few trials. Where one place in a
        round has changed, the places after it are believed to have changed too.
        """
        believed = self.believed()
        keep = np.where(trials > 0, LATELY, 1.0)
        self._excess = self._excess * keep + hits - believed * trials
        self._variance = self._variance * keep**2 + believed * (1 - believed) * trials
        of_rows = np.abs(self._excess) > SURPRISE * np.sqrt(self._variance + 0.25)
        running = trials[:, 0] > 0
        excess, variance = self._excess[running].sum(axis=0), self._variance[running].sum(axis=0)
        of_all = np.abs(excess) > SURPRISE * np.sqrt(variance + 0.25)
        changed = np.logical_or.accumulate(of_rows | of_all, axis=1)
        for known in (self.hits, self.trials, self._excess, self._variance):
            known[changed] = 0
        if of_all[0]:
            self.common_hits = self.common_trials = 0.0

    def believed(self) -> Float[np.ndarray, "B K"]:
        """The probability of each row's draft j, given that those before it are accepted. The array is not changed
        later: there is another one once there is anything new.
        """
        if self._believed is not None:
            return self._believed
        first = (self.common_hits + BELIEF) / (self.common_trials + 1)
        result = np.empty_like(self.trials)
        for place, prior in enumerate((np.full(len(result), first), *result.T[:-1])):
            known = self.hits[:, place] + PRIOR_TRIALS * prior
            result[:, place] = known / (self.trials[:, place] + PRIOR_TRIALS)
        self._believed = result
        return result
