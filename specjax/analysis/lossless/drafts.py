"""Whether a drafter says of its drafts what is true: one round after a text, drafted again with other random numbers.

Rejection and block verification rely on three things. A draft was drawn from the probabilities that come with it, or is
a function of the text. These probabilities, and the confidence, are known before the draft is drawn. And so is whether
the draft will be verified. What is known before is the same in all rows that agree in the drafts before: no statistics
is needed to see that it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax import Array

from specjax.analysis.lossless.report import Check, Test
from specjax.analysis.lossless.rows import Fed, Sampling
from specjax.analysis.lossless.statistics import LEAST, chi_square, independent_uniform, places, uniform
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.round import draft
from specjax.models.protocol import Params

TOLERANCE = 1e-3
"""Probabilities of equal rows differ by less: by where in the batch they stand."""


@dataclass(frozen=True)
class Round:
    """What was drafted after one prompt, in N rows.

    Attributes:
        tokens: [N, K].
        confidence: [N, K].
        verified: [N, K], which of the drafts are verified.
        spread: by how much the stated probabilities of rows differ that agree in the drafts before, of each place.
        total: the sum of the stated probabilities that is farthest from 1, of each place.
        first: [V], the stated probabilities of the first draft; None if it was not drawn.
        place: [N, K], the places of drafts in their distributions; None if they were not drawn.
    """

    tokens: np.ndarray
    confidence: np.ndarray
    verified: np.ndarray
    spread: np.ndarray
    total: np.ndarray
    first: np.ndarray | None
    place: np.ndarray | None


@partial(jax.jit, static_argnames="decoder")
def _draft(decoder: Decoder, params: Params, state: DecodeState) -> tuple[Array, Array | None, Array, Array]:
    proposal, n_drafted = draft(decoder, params, state)
    assert proposal is not None
    return proposal.tokens, proposal.logq, proposal.confidence, n_drafted


def _drafted(fed: Fed, sampling: Sampling, rng: np.random.Generator) -> Round:
    parts = []
    for streams in sampling.batches(fed.decoder.target.vocab_size):
        tokens, logq, confidence, n_drafted = _draft(fed.decoder, fed.params, fed.starting(streams, sampling))
        tokens, confidence = np.asarray(tokens), np.asarray(confidence)
        verified = np.arange(tokens.shape[1]) < np.asarray(n_drafted)[:, None]
        width = tokens.shape[1]
        spread, total, first, place = np.zeros(width), np.ones(width), None, None
        if logq is not None:
            share = rng.random(tokens.shape, np.float32)
            place = np.asarray(places(logq, tokens, share)[0])
            q = np.exp(np.asarray(logq, np.float32))
            first = q[0, 0]
            for k in range(width):
                known = verified[:, k]
                if known.any():
                    sums = q[known, k].sum(axis=-1)
                    total[k] = sums[np.argmax(np.abs(sums - 1))]
                    spread[k] = max(
                        float(np.ptp(q[rows & known, k], axis=0).max()) for rows in _alike(tokens, k, known)
                    )
        parts.append((tokens, confidence, verified, place, spread, total, first))
    tokens, confidence, verified = (np.concatenate([part[i] for part in parts]) for i in range(3))
    drawn = parts[0][3] is not None
    totals = np.stack([part[5] for part in parts])
    return Round(
        tokens,
        confidence,
        verified,
        spread=np.max([part[4] for part in parts], axis=0),
        total=totals[np.argmax(np.abs(totals - 1), axis=0), np.arange(totals.shape[1])],
        first=parts[0][6],
        place=np.concatenate([part[3] for part in parts]) if drawn else None,
    )


def _alike(tokens: np.ndarray, before: int, among: np.ndarray) -> list[np.ndarray]:
    """Masks of the rows that agree in the first drafts, of which at least one is `among` those asked for."""
    _, groups = np.unique(tokens[:, :before], axis=0, return_inverse=True)
    groups = np.ravel(groups)
    return [groups == group for group in np.unique(groups[among])]


def check_drafts(feds: Sequence[Fed], sampling: Sampling, rng: np.random.Generator) -> list[Check]:
    """The checks of what a drafter says, after each of the prompts."""
    rounds = [_drafted(fed, sampling, rng) for fed in feds]
    tried = f"{sampling.count} rounds after each of {len(rounds)} texts, {rounds[0].tokens.shape[1]} drafts each"
    stops = _stops(rounds, sampling)
    return [
        Check(
            "what is verified",
            "is it decided before a draft is drawn whether the draft is verified, and how confident the drafter is?",
            tried,
            faults=stops,
            advice="Proposal.made and Proposal.confidence: they must not look at the draft of their own place or later",
        ),
        Check(
            "stated probabilities",
            "are they a function of the text before the draft, and do they sum to 1?",
            tried,
            faults=_statements(rounds),
            advice="Proposal.logq: return what `choose` says, or Proposal.sure(...) if nothing is drawn",
        ),
        # Of drafts that were kept for what they are, the distribution is another one: that has been said.
        Check(
            "draws",
            "are drafts drawn from the stated probabilities, each independently of the one before?",
            "not looked at: see what is verified" if stops else tried,
            tests=() if stops else _draws(rounds),
            advice="Proposal.tokens and Proposal.logq: draw with `choose`, at the position where the token will stand",
        ),
    ]


def _stops(rounds: Sequence[Round], sampling: Sampling) -> tuple[str, ...]:
    p_min, faults = sampling.settings.draft.p_min, {}
    for drafted in rounds:
        for k in range(drafted.tokens.shape[1]):
            for rows in _alike(drafted.tokens, k, np.ones(len(drafted.tokens), bool)):
                sure, kept = drafted.confidence[rows, k], drafted.verified[rows, k]
                if kept.any() and not kept.all() and not (p_min > 0 and (np.abs(sure - p_min) < TOLERANCE).any()):
                    faults[k, 0] = (
                        f"draft {k + 1} is verified in {kept.mean():.0%} of rounds that agree in all that came before"
                        " it: that depends on what was drawn"
                    )
                if np.ptp(sure) > TOLERANCE:
                    faults[k, 1] = (
                        f"the confidence in draft {k + 1} is from {sure.min():.3f} to {sure.max():.3f} in rounds that"
                        " agree in all that came before it: it depends on what was drawn, and p_min would bias the text"
                    )
    return tuple(faults[key] for key in sorted(faults))


def _statements(rounds: Sequence[Round]) -> tuple[str, ...]:
    faults = {}
    for drafted in rounds:
        for k in range(drafted.tokens.shape[1]):
            if drafted.spread[k] > TOLERANCE:
                faults[k, 0] = (
                    f"the probabilities of draft {k + 1} differ by up to {drafted.spread[k]:.3f} in rounds that agree"
                    " in all that came before it"
                )
            if abs(drafted.total[k] - 1) > TOLERANCE:
                faults[k, 1] = f"the probabilities of draft {k + 1} sum to {drafted.total[k]:.4f}"
            if drafted.place is None:
                known = drafted.verified[:, k]
                for rows in _alike(drafted.tokens, k, known):
                    if len(np.unique(drafted.tokens[rows & known, k])) > 1:
                        faults[k, 2] = (
                            f"draft {k + 1} changes with the random numbers, but no probabilities are stated (logq is"
                            " None), so that it is taken for certain"
                        )
    return tuple(faults[key] for key in sorted(faults))


def _draws(rounds: Sequence[Round]) -> tuple[Test, ...]:
    tests = []
    for number, drafted in enumerate(rounds, 1):
        first = drafted.verified[:, 0]
        if drafted.first is not None and first.any():
            counts = np.bincount(drafted.tokens[first, 0], minlength=len(drafted.first))
            expected = drafted.first / drafted.first.sum() * first.sum()
            tests.append(
                Test(
                    f"counts of draft 1 after text {number} against its probabilities",
                    chi_square(counts, np.maximum(expected, LEAST)),
                )
            )
    drawn = [drafted for drafted in rounds if drafted.place is not None]
    if drawn:
        place = np.concatenate([drafted.place for drafted in drawn if drafted.place is not None])
        verified = np.concatenate([drafted.verified for drafted in drawn])
        for k in range(place.shape[1]):
            if verified[:, k].sum() >= 200:
                tests.append(Test(f"places of draft {k + 1} in its probabilities", uniform(place[verified[:, k], k])))
            both = verified[:, k] if k else np.zeros(len(place), bool)
            if both.sum() >= 1000:
                pair = independent_uniform(place[both, k - 1], place[both, k])
                tests.append(Test(f"places of drafts {k} and {k + 1} together", pair))
    return tuple(tests)
