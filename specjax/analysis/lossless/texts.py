"""Whether drawn texts have the target's distribution: each token against the probabilities that it gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    independent_uniform,
    places,
    same_distribution,
    uniform,
)
from specjax.decoding.acceptance import Rule
from specjax.decoding.decoder import Decoder
from specjax.decoding.grammar import Constraint
from specjax.decoding.leaning import leaned, no_counts
from specjax.decoding.loop import decode_chunk
from specjax.decoding.sampling import warp
from specjax.decoding.settings import RowSettings
from specjax.mesh.rows import Sharing
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import FeatureRequest, Params
from specjax.state import SequenceState

MOST_EXCLUDED = 1e-3
"""The share of tokens that rounding may bring over the edge of top-k, top-p or min-p."""


@dataclass(frozen=True)
class Texts:
    """What was drawn after one prompt, in N rows.

    Attributes:
        tokens: [N, T].
        place: [N, T], the places of tokens in the target's distributions.
        excluded: the share of tokens that the target gives no probability.
        first: [V], the target's probabilities of the first token.
        per_round: tokens that a round gave.
    """

    tokens: np.ndarray
    place: np.ndarray
    excluded: float
    first: np.ndarray
    per_round: float


def _decode(fed: Fed, streams: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, int]:
    """The tokens of the rows [B, T], and how many rounds of rows that took."""
    state = fed.starting(streams, sampling)
    _, chunk = decode_chunk(fed.decoder, fed.params, state, sampling.length)
    rounds = jax.device_get(chunk.rounds)
    tokens = np.zeros((len(streams), sampling.length), np.int32)
    done = np.zeros(len(streams), int)
    for emitted, count in zip(rounds.tokens, rounds.n_emitted, strict=True):
        for row in np.flatnonzero(count):
            tokens[row, done[row] : done[row] + count[row]] = emitted[row, : count[row]]
        done += count
    return tokens, int(np.sum(rounds.n_emitted > 0))


@partial(jax.jit, static_argnames="decoder")
def _judge(
    decoder: Decoder,
    params: Params,
    state: SequenceState,
    pending: Array,
    tokens: Array,
    share: Array,
    settings: RowSettings,
    constraint: Constraint | None,
) -> tuple[Array, Array, Array]:
    """Places and probabilities of the tokens [B, T] by a plain pass over them, and the first token's probabilities."""
    sharing, vocab_size = Sharing.of(state), decoder.target.vocab_size

    def run(parts: int, params: Params, state: SequenceState, whole: tuple, constraint: Constraint | None) -> tuple:
        def own(x: Array) -> Array:
            return sharing.own(x, len(state.length))

        pending, tokens, share, settings = jax.tree.map(own, whole)
        fed = jnp.concatenate([pending[:, None], tokens[:, :-1]], axis=1)
        n_valid = jnp.full(len(tokens), tokens.shape[1], jnp.int32)
        target = decoder.target.shard(parts)
        output, _ = target.extend(params, fed, n_valid, state, request=FeatureRequest(), rows="all")
        assert output.logits is not None
        none = None if settings.leaning is None else no_counts(len(tokens), vocab_size)
        logits = leaned(output.logits, settings.leaning, none, tokens[:, :-1])
        if constraint is not None:
            tables, rows = constraint.tables.of_part(), jax.tree.map(own, constraint.rows)
            logits = Constraint(tables, rows).window(tokens[:, :-1]).masked(logits)
        logp = warp(logits, settings)[..., :vocab_size]
        found = (*places(logp, tokens, share), jnp.exp(logp[:1, 0]))
        return jax.tree.map(sharing.whole, found)

    place, p, first = on_shards(
        run, params, state, (pending, tokens, share, settings), constraint, out=lambda *_: REPLICATED
    )
    return place, p, first[0]


def draw_texts(fed: Fed, plain: Fed, sampling: Sampling, rng: np.random.Generator) -> Texts:
    """Draw texts with the decoder of `fed`, and judge them by that of `plain`, which has no drafter."""
    parts, n_rounds = [], 0
    for streams in sampling.batches(fed.decoder.target.vocab_size):
        tokens, rounds = _decode(fed, streams, sampling)
        share = rng.random(tokens.shape, np.float32)
        pending = np.full(len(streams), plain.prompt[-1], np.int32)
        rows, wants = plain.rows(len(streams)), [sampling.settings] * len(streams)
        wanted = RowSettings.of(wants), plain.decoder.constraint(wants)
        judged = _judge(plain.decoder, plain.params, rows, pending, tokens, share, *wanted)
        n_rounds += rounds
        parts.append((tokens, *map(np.asarray, judged)))
    tokens, place, p = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return Texts(tokens, place, float(np.mean(p <= 0)), parts[0][3], tokens.size / max(1, n_rounds))


def check_plain(texts: Sequence[Texts], sampling: Sampling) -> Check:
    """The same questions to plain decoding, so that a failure behind it is known to be the drafter's doing."""
    return Check(
        "plain decoding",
        "do texts without drafts have the target's distribution? If not, no other check of texts means anything",
        _tried(texts, sampling),
        _excluded(texts),
        _tests(texts),
        "the target: its passes over one token and over several disagree",
    )


def check_texts(rule: Rule, texts: Sequence[Texts], plain: Sequence[Texts], sampling: Sampling) -> Check:
    """Whether texts drawn under a rule have the target's distribution."""
    paired = [
        Statistic(
            f"token {at + 1} after prompt {number} beside plain decoding",
            same_distribution(ours.tokens[:, at], theirs.tokens[:, at]),
        )
        for number, (ours, theirs) in enumerate(zip(texts, plain, strict=True), 1)
        for at in (1, sampling.length - 1)
    ]
    per_round = sum(each.per_round for each in texts) / len(texts)
    return Check(
        f"texts, {rule}",
        "does the whole loop keep the target's distribution?",
        f"{_tried(texts, sampling)}; {per_round:.2f} tokens per round",
        _excluded(texts),
        (*_tests(texts), *paired),
        "the checks above; if they pass, what the drafter keeps of a window, and the target's rollback",
    )


def _tried(texts: Sequence[Texts], sampling: Sampling) -> str:
    return f"{len(texts[0].tokens)} texts of {sampling.length} tokens after each of {len(texts)} prompts"


def _excluded(texts: Sequence[Texts]) -> tuple[str, ...]:
    share = max(each.excluded for each in texts)
    if share <= MOST_EXCLUDED:
        return ()
    return (f"{share:.2%} of the tokens are such that the target cannot draw at their place",)


def _tests(texts: Sequence[Texts]) -> tuple[Statistic, ...]:
    tests = []
    for number, each in enumerate(texts, 1):
        counts = np.bincount(each.tokens[:, 0], minlength=len(each.first))
        expected = np.maximum(each.first / each.first.sum() * len(each.tokens), LEAST)
        tests.append(Statistic(f"counts of token 1 after prompt {number}", chi_square(counts, expected)))
    place = np.concatenate([each.place for each in texts])
    tests.append(Statistic("places of all tokens", uniform(place.ravel(), bins=40)))
    for at in range(place.shape[1]):
        tests.append(Statistic(f"places of token {at + 1}", uniform(place[:, at])))
        if at:
            tests.append(
                Statistic(f"places of tokens {at} and {at + 1}", independent_uniform(place[:, at - 1], place[:, at]))
            )
    return tuple(tests)


def without_drafts(sampling: Sampling) -> Sampling:
    """The same for a decoder that cannot draft."""
    settings = replace(sampling.settings, draft=replace(sampling.settings.draft, n_max=0, n_min=0))
    return replace(sampling, settings=settings)
