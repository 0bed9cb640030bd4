"""From logits to a token: temperature, top-k, top-p, min-p, and a draw by the Gumbel-max trick.

Order of the filters: temperature, top-k, top-p, min-p, as in transformers. llama.cpp's default chain applies the
temperature last, so that for temperatures other than 1 its top-p and min-p see a different distribution and may keep a
different set; top-k alone is the same in both.

Every row has its own settings. A batch whose rows are all greedy takes the argmax and nothing else. Where every row
that draws keeps few tokens, noise is made for these alone, otherwise for the whole vocabulary. What a row draws does
not depend on which of these ways its batch goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

from specjax.decoding.argmax import argmax
from specjax.decoding.random import Purpose, Purposes, gumbel_at
from specjax.decoding.settings import RowSettings

SHORTLIST = 1024
"""The kept set is almost always far smaller than this; only where it is not is the whole vocabulary looked at."""

Result = TypeVar("Result")


@struct.dataclass
class Shortlist:
    """The tokens that can still be drawn, and maybe others.

    Attributes:
        tokens: token ids.
        scores: log-probabilities up to a constant per row, -inf for tokens that are excluded.
        log_total: that constant, the log of the sum of exp(scores).
        in_order: whether the tokens are the vocabulary from 0 on.
    """

    tokens: Int[Array, "B *T M"]
    scores: Float[Array, "B *T M"]
    log_total: Float[Array, "B *T 1"]
    in_order: bool = struct.field(pytree_node=False, default=False)

    @property
    def log_probs(self) -> Float[Array, "B *T M"]:
        """Normalised scores."""
        return self.scores - self.log_total


class _Head(NamedTuple):
    """The largest scores of every row, and which of them its filters keep.

    Attributes:
        tokens: ids, most probable first.
        scores: -inf for those that the filters exclude.
        log_total: of the scores that are left.
        last: score and id of the last token that top-k and top-p keep.
        enough: whether nothing else is kept.
    """

    tokens: Int[Array, "B *T N"]
    scores: Float[Array, "B *T N"]
    log_total: Float[Array, "B *T 1"]
    last: tuple[Float[Array, "B *T 1"], Int[Array, "B *T 1"]]
    enough: Bool[Array, "B *T 1"]


def top_k(x: Float[Array, "*T V"], k: int) -> tuple[Float[Array, "*T k"], Int[Array, "*T k"]]:
    """The k largest values and their places, largest first, the lower place first among equals."""
    # Without the barrier XLA moves later slices into its expansion of top_k, no longer recognises it, and sorts the
    # whole vocabulary: on a CPU that is more than 50 times slower. One barrier for both results would be enough for
    # that, but then XLA's partitioner aborts where the vocabulary is sharded.
    values, index = lax.top_k(x, k)
    return lax.optimization_barrier(values), lax.optimization_barrier(index)


def _kept(top_k: Int[Array, "*rows"], size: int) -> Int[Array, "*rows"]:
    """How many tokens top-k keeps of so many."""
    return jnp.where((top_k > 0) & (top_k < size), top_k, size)


def _last_kept(
    scores: Float[Array, "B *T V"], row: RowSettings, length: int
) -> tuple[Array, Array, Int[Array, "B *T 1"], Bool[Array, "B *T 1"]]:
    """The `length` largest scores and their tokens, the rank of the last that top-k and top-p keep, and whether they
    are known to keep none beyond."""
    values, tokens = top_k(scores, length)
    k = _kept(row.top_k, scores.shape[-1])
    nucleus = row.top_p < 1
    among = jax.nn.logsumexp(jnp.where(jnp.arange(length) < k, values, -jnp.inf), axis=-1, keepdims=True)
    total = lax.cond(
        jnp.any(row.draws & nucleus & (k > length)),
        lambda: jnp.where(k > length, jax.nn.logsumexp(scores, axis=-1, keepdims=True), among),
        lambda: among,
    )
    mass = jnp.cumsum(jnp.exp(values - total), axis=-1)
    # The token that crosses top_p stays, hence the mass before each token and not the mass up to it.
    crossing = jnp.sum(mass[..., :-1] < row.top_p, axis=-1, keepdims=True)
    last = jnp.minimum(jnp.where(nucleus, crossing, length - 1), k - 1)
    # Beyond the list top-k changes what top-p is a share of: then the list says nothing.
    whole = k == scores.shape[-1]
    return values, tokens, last, (k <= length) | (whole & nucleus & (mass[..., -1:] >= row.top_p))


def _head(scores: Float[Array, "B *T V"], row: RowSettings) -> _Head:
    """What the filters keep of the largest scores. Greedy rows need nothing, and rows without filters nothing here."""
    size = scores.shape[-1]
    k = _kept(row.top_k, size)
    nucleus = row.top_p < 1
    values, tokens, last, enough = _last_kept(scores, row, min(SHORTLIST, size))
    excluded_by_min_p = (values[..., -1:] < row.min_score) & ((k == size) | ~nucleus)
    filtered = (k < size) | nucleus | (row.min_score > -jnp.inf)
    enough = filtered & (enough | excluded_by_min_p)
    kept = (jnp.arange(values.shape[-1]) <= last) & ~(values < row.min_score)
    kept_scores = jnp.where(kept, values, -jnp.inf)
    log_total = jax.nn.logsumexp(kept_scores, axis=-1, keepdims=True)

    def at(values: Array, tokens: Array, last: Array) -> tuple[Array, Array]:
        return jnp.take_along_axis(values, last, axis=-1), jnp.take_along_axis(tokens, last, axis=-1)

    everything = jnp.full_like(log_total, -jnp.inf), jnp.full_like(last, size)
    score, token = jax.tree.map(
        lambda known, all_: jnp.where(enough, known, all_), at(values, tokens, last), everything
    )
    sorted_needed = row.draws & ~enough & ((k < size) | nucleus)

    def sort_all() -> tuple[Array, Array]:
        far = at(*_last_kept(scores, row, size)[:3])
        return jax.tree.map(lambda found, known: jnp.where(sorted_needed, found, known), far, (score, token))

    if size > SHORTLIST:
        score, token = lax.cond(jnp.any(sorted_needed), sort_all, lambda: (score, token))
    return _Head(tokens, kept_scores, log_total, (score, token), enough)


def _unfiltered(scores: Float[Array, "B *T V"]) -> _Head:
    """A head that says nothing, for rows without filters."""
    rows, length = scores.shape[:-1], min(SHORTLIST, scores.shape[-1])
    none = jnp.full((*rows, 1), -jnp.inf)
    return _Head(
        jnp.zeros((*rows, length), jnp.int32),
        jnp.zeros((*rows, length)),
        none,
        (none, jnp.full((*rows, 1), scores.shape[-1], jnp.int32)),
        jnp.zeros((*rows, 1), bool),
    )


def with_shortlist(
    logits: Float[Array, "B *T V"], settings: RowSettings, then: Callable[[Shortlist], Result]
) -> Result:
    """What `then` makes of the tokens that temperature, top-k, top-p and min-p leave to be drawn, for rows that draw.

    `then` is traced for a shortlist of few tokens, most probable first, and for the vocabulary in order. Scores are
    float32 and their maximum is 0. What it gets for greedy rows is of no use, except that it is no NaN.
    """
    row = settings.along(logits)
    scores = logits.astype(jnp.float32)
    # The maximum goes first, so that small temperatures do not overflow and sums with noise keep their precision.
    scores = (scores - jnp.max(scores, axis=-1, keepdims=True)) * (1 / jnp.where(row.draws, row.temperature, 1))
    filtered = (_kept(row.top_k, logits.shape[-1]) < logits.shape[-1]) | (row.top_p < 1) | (row.min_score > -jnp.inf)
    head = lax.cond(jnp.any(row.draws & filtered), lambda: _head(scores, row), lambda: _unfiltered(scores))

    def short() -> Result:
        return then(Shortlist(head.tokens, head.scores, head.log_total))

    def whole() -> Result:
        tokens = jnp.broadcast_to(jnp.arange(scores.shape[-1], dtype=jnp.int32), scores.shape)
        score, token = head.last
        kept = ((scores > score) | ((scores == score) & (tokens <= token))) & ~(scores < row.min_score)
        left = jnp.where(kept, scores, -jnp.inf)
        # The sum is that of the head where there is one, so that rounding does not tell which way a batch went.
        log_total = jnp.where(head.enough, head.log_total, jax.nn.logsumexp(left, axis=-1, keepdims=True))
        return then(Shortlist(tokens, left, log_total, in_order=True))

    return lax.cond(jnp.all(head.enough | ~row.draws), short, whole)


def spread(candidates: Shortlist, vocab_size: int) -> Float[Array, "B *T V"]:
    """The log-probabilities of the whole vocabulary, -inf for excluded tokens."""
    if candidates.in_order:
        return candidates.log_probs
    rows = candidates.scores.shape[:-1]
    excluded = jnp.full((*rows, vocab_size), -jnp.inf, jnp.float32)
    return jnp.put_along_axis(excluded, candidates.tokens, candidates.log_probs, axis=-1, inplace=False)


def warp(logits: Float[Array, "B *T V"], settings: RowSettings) -> Float[Array, "B *T V"]:
    """The distribution that tokens are drawn from: normalised log-probabilities, float32, -inf for excluded tokens.

    In greedy rows all of the probability is on the argmax.
    """
    size = logits.shape[-1]
    drawn = with_shortlist(logits, settings, lambda candidates: spread(candidates, size))
    certain = jnp.where(jnp.arange(size) == argmax(logits)[..., None], 0.0, -jnp.inf)
    return jnp.where(settings.along(logits).draws, drawn, certain)


def sample(logp: Float[Array, "*T V"], noise: Float[Array, "*T V"]) -> Int[Array, "*T"]:
    """A draw from softmax(logp), given Gumbel noise: argmax(logp + noise). `logp` need not be normalised."""
    total = logp + noise
    # The argmax in two steps. With jnp.argmax XLA pulls the making of the noise into the reduction, which it does not
    # vectorise: on a CPU that is ten times slower over a vocabulary.
    size = total.shape[-1]
    index = jnp.where(total == jnp.max(total, axis=-1, keepdims=True), jnp.arange(size, dtype=jnp.int32), size - 1)
    return jnp.min(index, axis=-1)


def sample_shortlist(
    candidates: Shortlist,
    *,
    seed: UInt[Array, "B"],
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
    purpose: Purposes = Purpose.TOKEN,
) -> Int[Array, "B *T"]:
    """A token of each shortlist, with the noise of (seed, sequence, position, purpose) of its tokens."""
    choice = sample(candidates.scores, gumbel_at(seed, sequence, position, purpose, candidates.tokens))
    return jnp.take_along_axis(candidates.tokens, choice[..., None], axis=-1)[..., 0].astype(jnp.int32)


def sample_tokens(
    logits: Float[Array, "B *T V"],
    *,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
) -> Int[Array, "B *T"]:
    """Plain sampling: the token at each absolute position, a function of the logits and (seed, sequence, position)."""
    best = argmax(logits)

    def draw(candidates: Shortlist) -> Int[Array, "B *T"]:
        return sample_shortlist(candidates, seed=settings.seed, sequence=sequence, position=position)

    def drawn() -> Int[Array, "B *T"]:
        return jnp.where(settings.along(best).draws, with_shortlist(logits, settings, draw), best)

    return lax.cond(jnp.any(settings.draws), drawn, lambda: best)


def top2_margin(logits: Float[Array, "*T V"]) -> Float[Array, "*T"]:
    """Largest logit minus the second largest, float32: how near the argmax is to a tie. V must be at least 2."""
    best = top_k(logits.astype(jnp.float32), 2)[0]
    return best[..., 0] - best[..., 1]
