"""Whether a drafter says of its drafts what is true: one round after a text, drafted again with other random numbers.

Rejection and block verification rely on two things. Whether a draft will be verified is known before it is drawn: that
is the same in all rows that agree in the drafts before, so that no statistics is needed to see that it is not. And the
draft was drawn from the probabilities that come with it. If none come with it, it is taken for certain. That is no
loss even if it was drawn, since given the draft it is a certain one: such a drafter only has fewer drafts accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specjax.analysis.lossless.report import Check, Statistic
from specjax.analysis.lossless.rows import Fed, Sampling
from specjax.analysis.lossless.statistics import (
    LEAST,
    chi_square,
    independent_of,
    independent_uniform,
    places,
    uniform,
)
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.round import draft
from specjax.mesh.rows import Sharing
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import Params

TOLERANCE = 1e-3
"""Probabilities of equal rows differ by less: by where in the batch they stand."""

FEWEST = 640
"""Fewer draws than this are not tested: 10 for each cell of the largest test."""


@dataclass(frozen=True)
class Drawn:
    """Drafts that come with probabilities.

    Attributes:
        place: [N, K], the places of drafts in their distributions.
        peak: [N, K], the largest probability.
        total: [N, K], the sum of the probabilities.
        first: [V], the probabilities of the first draft in one of the rows.
        same_first: whether all rows have these.
    """

    place: np.ndarray
    peak: np.ndarray
    total: np.ndarray
    first: np.ndarray
    same_first: bool


@dataclass(frozen=True)
class Round:
    """What was drafted after one prompt, in N rows.

    Attributes:
        tokens: [N, K].
        confidence: [N, K].
        verified: [N, K], which of the drafts are verified.
        drawn: what they were drawn from; None if they are taken for certain.
    """

    tokens: np.ndarray
    confidence: np.ndarray
    verified: np.ndarray
    drawn: Drawn | None


@partial(jax.jit, static_argnames="decoder")
def _draft(decoder: Decoder, params: Params, state: DecodeState) -> tuple[Array, Array | None, Array, Array]:
    sharing = Sharing.of(state)

    def run(parts: int, params: Params, state: DecodeState) -> tuple[Array, Array | None, Array, Array]:
        proposal, n_drafted = draft(decoder.shard(parts), params, state)
        assert proposal is not None
        logq = None if proposal.logq is None else proposal.logq[..., : decoder.target.vocab_size]
        return jax.tree.map(sharing.whole, (proposal.tokens, logq, proposal.confidence, n_drafted))

    return on_shards(run, params, state, out=lambda *_: REPLICATED)


@jax.jit
def _stated(logq: Array, tokens: Array, share: Array, first: Array) -> tuple[Array, ...]:
    """Places, largest probabilities and sums of all drafts, and how far the first ones' probabilities are from those
    given.
    """

    def run(parts: int, logq: Array, tokens: Array, share: Array, first: Array) -> tuple[Array, ...]:
        del parts
        q = jnp.exp(logq)
        return places(logq, tokens, share)[0], q.max(axis=-1), q.sum(axis=-1), jnp.max(jnp.abs(q[:, 0] - first))

    return on_shards(run, logq, tokens, share, first, out=lambda *_: REPLICATED)


def _drafted(fed: Fed, sampling: Sampling, rng: np.random.Generator) -> Round:
    parts, stated, first = [], [], None
    for streams in sampling.batches(fed.decoder.target.vocab_size):
        tokens, logq, confidence, n_drafted = _draft(fed.decoder, fed.params, fed.starting(streams, sampling))
        verified = np.arange(tokens.shape[1]) < np.asarray(n_drafted)[:, None]
        parts.append((np.asarray(tokens), np.asarray(confidence), verified))
        if logq is not None:
            first = np.exp(np.asarray(logq)[0, 0]) if first is None else first
            share = rng.random(tokens.shape, np.float32)
            stated.append([np.asarray(each) for each in _stated(logq, tokens, share, first)])
    drawn = None
    if first is not None:
        place, peak, total = (np.concatenate([part[i] for part in stated]) for i in range(3))
        drawn = Drawn(place, peak, total, first, bool(max(part[3] for part in stated) < TOLERANCE))
    tokens, confidence, kept = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return Round(tokens, confidence, kept, drawn)


def _alike(tokens: np.ndarray, before: int) -> list[np.ndarray]:
    """Masks of the rows that agree in so many drafts."""
    _, groups = np.unique(tokens[:, :before], axis=0, return_inverse=True)
    groups = np.ravel(groups)
    return [groups == group for group in range(groups.max() + 1)]


def check_drafts(feds: Sequence[Fed], sampling: Sampling, rng: np.random.Generator) -> list[Check]:
    """The checks of what a drafter says, after each of the prompts."""
    rounds = [_drafted(fed, sampling, rng) for fed in feds]
    tried = f"{sampling.count} rounds after each of {len(rounds)} prompts, {rounds[0].tokens.shape[1]} drafts each"
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
            "do they sum to 1?",
            tried if any(drafted.drawn for drafted in rounds) else "there are none: drafts are taken for certain",
            faults=_sums(rounds),
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
            # Drafting may stop where no row of a batch goes on: what a row says of later places then means nothing.
            went_on = drafted.verified[:, k - 1] if k else np.ones(len(drafted.tokens), bool)
            for alike in _alike(drafted.tokens, k):
                if not (rows := alike & went_on).any():
                    continue
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


def _sums(rounds: Sequence[Round]) -> tuple[str, ...]:
    faults = {}
    for drafted in rounds:
        for k in range(drafted.tokens.shape[1]):
            sums = drafted.drawn.total[drafted.verified[:, k], k] if drafted.drawn else np.ones(1)
            if len(sums) and not (off := np.abs(sums - 1)).max() < TOLERANCE:
                faults[k] = f"the probabilities of draft {k + 1} sum to {sums[np.argmax(off)]:.4f}"
    return tuple(faults[k] for k in sorted(faults))


def _draws(rounds: Sequence[Round]) -> tuple[Statistic, ...]:
    tests = []
    drawing = [(number, drafted, drafted.drawn) for number, drafted in enumerate(rounds, 1) if drafted.drawn]
    for number, drafted, drawn in drawing:
        known = drafted.verified[:, 0]
        if drawn.same_first and known.any():
            counts = np.bincount(drafted.tokens[known, 0], minlength=len(drawn.first))
            expected = np.maximum(drawn.first / drawn.first.sum() * known.sum(), LEAST)
            what = f"counts of draft 1 after prompt {number} against its probabilities"
            tests.append(Statistic(what, chi_square(counts, expected)))
    if drawing:
        verified = np.concatenate([drafted.verified for _, drafted, _ in drawing])
        place = np.concatenate([drawn.place for *_, drawn in drawing])
        peak = np.concatenate([drawn.peak for *_, drawn in drawing])
        for k, known in enumerate(verified.T):
            if known.sum() >= FEWEST:
                here = place[known, k]
                tests.append(Statistic(f"places of draft {k + 1} in its probabilities", uniform(here)))
                beside = independent_of(peak[known, k], here)
                tests.append(Statistic(f"places of draft {k + 1} beside its largest probability", beside))
                if k:
                    pair = independent_uniform(place[known, k - 1], here)
                    tests.append(Statistic(f"places of drafts {k} and {k + 1} together", pair))
    return tuple(tests)
