"""What other settings of drafting would have brought, worked out from a trace without the model.

Which tokens a text has does not depend on how it is drafted: greedy and coupled texts are the same, and others have the
same distribution. So the text of the trace is walked through again: rounds
start where the other settings would let them start. Where such a place lies inside a round of the trace, drafts from
there are taken to be those of that round: accepted where these were, refused where these were, confident where these
were, and ending where the drafter ended. Behind the last draft of the round nothing is known. There drafts are accepted
as often as drafts of their place were in the whole trace. So each place is visited with some probability, and the sum
of these is the number of rounds.

Another acceptance rule would have kept other drafts. How probable that is follows from p and q of the text's own token
at each place, of an accepted draft or of what replaced it. Given the text, a draft drawn from q stands with probability
min(1, q / p) under rejection (Leviathan et al., arXiv 2211.17192): it is drawn and kept with min(p, q), and the text
has the token with p. Under block verification (Sun et al., arXiv 2403.10444) at least j drafts stand with the smallest
of 1 and the products of the first q / p, up to the j-th. The coupled rule compares all tokens, so it cannot be told.

A drafter that starts nearer knows more of the text, and can be right where it was wrong before. This is left out.
`benchmarks/replay.py` measures how much it matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from specjax.traces.trace import Trace

ToldRule = Literal["rejection", "block"]
"""The rules of which a trace tells what they would have kept."""

STRETCH = 32
"""Rounds of the trace that are taken together for the standard error; neighbours are not independent."""

FEWEST_STRETCHES = 8
"""Short traces are divided into as many stretches, of fewer rounds each."""


@dataclass(frozen=True)
class WhatIf:
    """What settings would bring, with standard errors.

    Attributes:
        k, p_min, n_min, accept: the settings; `accept` is None for the rules of the trace.
        tokens_per_round, tokens_per_round_error: the expected mean.
        drafts_per_round: drafts that a round verifies.
        seconds_per_round: None if it is not known.
        tokens_per_second, tokens_per_second_error: None if the time of a round is not known. The error is that of the
            number of tokens; the time is taken to be exact.
    """

    k: int
    p_min: float
    n_min: int
    tokens_per_round: float
    tokens_per_round_error: float
    drafts_per_round: float
    seconds_per_round: float | None = None
    accept: ToldRule | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """The speed that this comes to."""
        return self.tokens_per_round / self.seconds_per_round if self.seconds_per_round else None

    @property
    def tokens_per_second_error(self) -> float | None:
        """The standard error of this speed."""
        return self.tokens_per_round_error / self.seconds_per_round if self.seconds_per_round else None

    def __repr__(self) -> str:
        settings = f"k={self.k}" + (f", p_min={self.p_min:g}" if self.p_min else "")
        settings += f", n_min={self.n_min}" if self.n_min else ""
        settings += f", accept={self.accept!r}" if self.accept else ""
        speed = (
            ""
            if self.tokens_per_second is None
            else f"; {self.tokens_per_second:.1f} ± {self.tokens_per_second_error:.1f} tokens a second"
        )
        return (
            f"WhatIf({settings}: {self.tokens_per_round:.3f} ± {self.tokens_per_round_error:.3f} tokens and"
            f" {self.drafts_per_round:.2f} drafts a round{speed})"
        )


def what_if(
    trace: Trace,
    k: int,
    p_min: float = 0.0,
    n_min: int = 0,
    accept: ToldRule | None = None,
    seconds: float | None = None,
) -> WhatIf:
    """What other settings would have brought; see `Trace.what_if`."""
    _check(trace, k, p_min, n_min, accept)
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds is {seconds!r}; give the time of a round, or leave it out")
    ratios = _ratios(trace, accept)
    usual = Usual.of(trace, p_min, _chances(ratios, accept))
    sums = [
        _walked(trace[rounds], ratios[rounds], accept, usual, k, p_min, n_min)
        for text in trace.texts
        if (rounds := trace.text == text.number).any()
    ]
    if not sums:
        raise ValueError("this trace has no rounds; generate more than one token")
    tokens, rounds, drafts = np.concatenate(sums, axis=1)
    starts = np.cumsum([0, *(own.shape[1] for own in sums)])
    size = max(1, min(STRETCH, len(tokens) // FEWEST_STRETCHES))
    stretches = np.concatenate([np.arange(start, end, size) for start, end in pairwise(starts)])
    mean = tokens.sum() / rounds.sum()
    rest = np.add.reduceat(tokens - mean * rounds, stretches)
    count = len(rest)
    error = np.sqrt(count / (count - 1) * (rest**2).sum()) / rounds.sum() if count > 1 else np.nan
    as_recorded = not p_min and not n_min and accept is None
    return WhatIf(
        k,
        p_min,
        n_min,
        float(mean),
        float(error),
        float(drafts.sum() / rounds.sum()),
        _seconds_of(trace, k) if seconds is None and as_recorded else seconds,
        accept,
    )


def _check(trace: Trace, k: int, p_min: float, n_min: int, accept: ToldRule | None) -> None:
    """Raise ValueError where a setting is out of its range, or the trace does not tell; see `Trace.what_if`."""
    least = int(trace.depth.min()) if len(trace) else 0
    if not isinstance(k, Integral) or not 0 <= k <= least:
        raise ValueError(
            f"k is {k!r}, but there are rounds in this trace that could make no more than {least} drafts; give 0 to"
            f" {least}, or record a trace with a larger draft="
        )
    held_back = [text.number for text in trace.texts if _holds_back(text.settings.get("draft"))]
    if held_back:
        raise ValueError(
            f"texts {held_back} were drafted with p_min, n_min or skip_streak, so that the trace does not tell what"
            " other drafts would have brought; record one with draft=K alone"
        )
    if not isinstance(p_min, Real) or not isinstance(n_min, Integral) or not 0 <= p_min <= 1 or n_min < 0:
        raise ValueError(
            f"p_min is {p_min!r} and n_min is {n_min!r}; give a probability, and a whole number that is at least 0"
        )
    if accept is not None and accept not in get_args(ToldRule):
        raise ValueError(
            f"accept is {accept!r}; a trace tells what {' or '.join(map(repr, get_args(ToldRule)))} would have kept,"
            " or the rule that it was recorded with, if accept is left out"
        )
    drafted = trace.drafts >= 0
    if p_min and np.isnan(trace.confidence[:, :k][drafted[:, :k]]).any():
        raise ValueError(
            "p_min needs the confidence of drafts, which this trace does not hold; record one with trace=True"
        )
    if accept is not None and np.isnan(trace.p[drafted]).any():
        raise ValueError(
            "accept needs the probabilities of drafts, which this trace does not hold; record one with trace=True"
        )


def _holds_back(draft: Any) -> bool:
    """Whether settings of drafting, as a trace has them, leave out drafts that the drafter could make."""
    return isinstance(draft, Mapping) and any(draft.get(name) for name in ("p_min", "n_min", "skip_streak"))


def _seconds_of(trace: Trace, k: int) -> float | None:
    """What a round of so many drafts took, if the trace has such rounds."""
    seconds = trace.seconds[trace.depth == k]
    return float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else None


def _ratios(trace: Trace, accept: ToldRule | None) -> Float[np.ndarray, "N K"]:
    """q / p of the text's token at each place of a round: 1 for a draft that stood and 0 for one that did not, where
    the recorded rules are asked for, or where drafts were not drawn: all rules agree on those. NaN where nothing is
    known.
    """
    place, n_accepted = np.arange(trace.drafts.shape[1]), trace.n_accepted[:, None]
    stood, fell = place < n_accepted, (place == n_accepted) & (place < trace.n_drafted[:, None])
    ratios = np.where(stood, 1.0, np.where(fell, 0.0, np.nan))
    if accept is None:
        return ratios
    p = np.where(stood, trace.p, trace.p_next[:, None]).astype(float)
    q = np.where(stood, trace.q, trace.q_next[:, None]).astype(float)
    return np.divide(q, p, out=ratios, where=(stood | fell) & np.isfinite(q) & (p > 0))


def _chances(ratios: Float[np.ndarray, "*N K"], accept: ToldRule | None) -> Float[np.ndarray, "*N K"]:
    """How probable it is that each draft of a round stands, given the text and that those before it stand; see above.
    NaN where nothing is known.
    """
    if accept != "block":
        return np.minimum(ratios, 1)
    survival = np.minimum.accumulate(np.minimum(np.cumprod(ratios, axis=-1), 1), axis=-1)
    before = np.concatenate([np.ones_like(survival[..., :1]), survival[..., :-1]], axis=-1)[..., : survival.shape[-1]]
    return np.divide(survival, before, out=np.zeros_like(survival), where=before != 0)


class Usual(NamedTuple):
    """What is believed of drafts of which nothing is known, by their place.

    Attributes:
        sure: the share of drafts whose confidence reaches the threshold, of those that the rounds of a trace reached.
        accepted: the share of them that are accepted.
    """

    sure: Float[np.ndarray, "K"]
    accepted: Float[np.ndarray, "K"]

    @staticmethod
    def of(trace: Trace, p_min: float, chances: Float[np.ndarray, "N K"]) -> Usual:
        """Of a whole trace. Shares of nothing are 0."""
        reached = trace.reached
        sure = reached & ~(trace.confidence < p_min)
        return Usual(
            sure.sum(axis=0) / np.maximum(reached.sum(axis=0), 1),
            np.sum(chances, axis=0, where=sure) / np.maximum(sure.sum(axis=0), 1),
        )


def _walked(
    trace: Trace,
    ratios: Float[np.ndarray, "N K"],
    accept: ToldRule | None,
    usual: Usual,
    k: int,
    p_min: float,
    n_min: int,
) -> Float[np.ndarray, "3 N"]:
    """Of each round of one text: the tokens that it emitted, the rounds that would start in it, and their drafts."""
    sums = np.zeros((3, len(trace)))
    ahead = np.zeros(k + 1)  # the probability that a round starts at the present token, and at those after it
    ahead[0] = 1.0
    for index, n_emitted in enumerate(trace.n_emitted):
        sums[0, index] = n_emitted
        for offset in range(n_emitted):
            here, ahead = ahead[0], np.append(ahead[1:], 0.0)
            counts = _counts(trace, index, offset, usual, k, p_min, n_min)
            sums[1:, index] += here, here * counts @ np.arange(k + 1)
            at_least = np.cumsum(counts[::-1])[::-1]
            accepted = usual.accepted.copy()
            known = _chances(ratios[index, offset:], accept)
            accepted[: len(known)] = np.where(np.isnan(known), accepted[: len(known)], known)
            for place in range(k):
                drafted = at_least[place + 1] / at_least[place] if at_least[place] else 0.0
                goes_on = drafted * accepted[place]
                ahead[place] += here * (1 - goes_on)
                here *= goes_on
            ahead[k] += here
    return sums


def _counts(
    trace: Trace, index: int, offset: int, usual: Usual, k: int, p_min: float, n_min: int
) -> Float[np.ndarray, "counts"]:
    """The probabilities of 0, 1, ..., k drafts in a round that starts `offset` tokens behind the start of another."""
    known = trace.confidence[index, offset : trace.n_drafted[index]]
    ended = trace.n_drafted[index] < trace.depth[index]  # by the drafter, not by the program
    most = min(k, len(known)) if ended else k
    sure = np.ones(most)
    if p_min:
        sure = usual.sure[:most].copy()
        sure[: len(known)] = known[:most] >= p_min
    reached = np.concatenate([[1.0], np.cumprod(sure)])
    counts = np.zeros(k + 1)
    counts[: most + 1] = np.append(reached[:-1] - reached[1:], reached[-1])
    counts[0] += counts[1:n_min].sum()
    counts[1:n_min] = 0
    return counts
