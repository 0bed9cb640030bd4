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
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.argmax import argmax
from specjax.decoding.random import Key, Purpose, Purposes, gumbel_at, key_at
from specjax.decoding.settings import RowSettings
from specjax.decoding.vocabulary import maximum, own_tokens, sum_of_exp, vocabulary_size, whole_row
from specjax.mesh.columns import top_k, values_at
from specjax.mesh.rows import anywhere, everywhere

FIRST_LOOK = 64
"""How many of the most probable tokens are looked at first. It is enough for most settings, and to find more of them
takes much longer.
"""

SHORTLIST = 512
"""How many are looked at next, and how many tokens a short list has. The whole vocabulary is only where a row keeps
more.
"""

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
        """Log-probabilities: the scores minus the log of their total."""
        return self.scores - self.log_total

    def probability_of(self, tokens: Int[Array, "B *T"]) -> Float[Array, "B *T"]:
        """The probability of one token at each place; 0 if it is excluded."""
        if self.in_order:
            score = jnp.take_along_axis(self.scores, tokens[..., None], axis=-1)
        else:
            named = self.tokens == tokens[..., None]
            score = jnp.max(jnp.where(named, self.scores, -jnp.inf), axis=-1, keepdims=True)
        return jnp.exp(score - self.log_total)[..., 0]

    def at_places(self, places: slice) -> Shortlist:
        """The lists of some of the places T."""
        return jax.tree.map(lambda each: each[:, places], self)


class _Edge(NamedTuple):
    """Where the kept set of every row ends; all of it broadcasts against scores [B, *T, V].

    Attributes:
        score, token: of the last token that top-k and top-p keep; -inf and V if they keep all, or if it is not known.
        log_total: the log of the sum of exp(scores) over what is kept.
        known: whether that has been found out.
    """

    score: Float[Array, "B *T 1"]
    token: Int[Array, "B *T 1"]
    log_total: Float[Array, "B *T 1"]
    known: Bool[Array, "B *T 1"]


class _Largest(NamedTuple):
    """The largest scores, best first, padded with -inf so that sums have as many terms however far was looked.

    Attributes:
        values: the scores.
        tokens: their tokens.
        length: how many of them are no padding.
    """

    values: Float[Array, "B *T M"]
    tokens: Int[Array, "B *T M"]
    length: Int[Array, ""]


def _limit(row: RowSettings, size: int) -> Array:
    """How many tokens top-k keeps of so many."""
    return jnp.where((row.top_k > 0) & (row.top_k < size), row.top_k, size)


def _keep(
    scores: Float[Array, "B *T M"], tokens: Int[Array, "B *T M"], edge: _Edge, row: RowSettings
) -> Float[Array, "B *T M"]:
    """The scores, -inf for what the filters exclude."""
    inside = (scores > edge.score) | ((scores == edge.score) & (tokens <= edge.token))
    return jnp.where(inside & ~(scores < row.min_score), scores, -jnp.inf)


def _log_total(scores: Float[Array, "B *T M"]) -> Float[Array, "B *T 1"]:
    """The log of the sum of exp(scores), whose maximum is 0."""
    return jnp.log(jnp.sum(jnp.exp(scores), axis=-1, keepdims=True))


def _largest(scores: Float[Array, "B *T V"], length: int, width: int) -> _Largest:
    """The `length` largest scores, in a list of `width`."""
    padding = [(0, 0)] * (scores.ndim - 1) + [(0, width - length)]
    values, tokens = top_k(scores, length)
    return _Largest(jnp.pad(values, padding, constant_values=-jnp.inf), jnp.pad(tokens, padding), jnp.int32(length))


def _nucleus_total(scores: Float[Array, "B *T V"], row: RowSettings, size: int) -> Float[Array, "B *T 1"]:
    """What the nucleus is a share of where top-k keeps all, as the log of a sum; elsewhere it means nothing."""
    wanted = row.draws & (row.top_p < 1) & (_limit(row, size) == size)
    return lax.cond(anywhere(wanted), lambda: jnp.log(sum_of_exp(scores)), lambda: jnp.zeros_like(scores[..., :1]))


def _is_known(largest: _Largest, total: Float[Array, "B *T 1"], row: RowSettings, size: int) -> Bool[Array, "B *T 1"]:
    """Whether the last token that is kept is among the largest. Where top-k reaches beyond them, what top-p takes its
    share of is not known."""
    k, nucleus = _limit(row, size), row.top_p < 1
    covered = jnp.sum(jnp.exp(largest.values - total), axis=-1, keepdims=True) >= row.top_p
    worst = lax.dynamic_slice_in_dim(largest.values, largest.length - 1, 1, axis=-1)
    beyond = worst < row.min_score
    return (k <= largest.length) | jnp.where(k == size, (nucleus & covered) | beyond, ~nucleus & beyond)


def _edge(
    largest: _Largest, total: Float[Array, "B *T 1"], row: RowSettings, size: int, known: Bool[Array, "B *T 1"]
) -> _Edge:
    """Where kept sets end that lie among the largest; `known` says which do."""
    values, tokens, length = largest
    k, nucleus = _limit(row, size), row.top_p < 1
    among = _log_total(jnp.where(jnp.arange(values.shape[-1]) < k, values, -jnp.inf))
    mass = jnp.cumsum(jnp.exp(values - jnp.where(k == size, total, among)), axis=-1)
    # The token that crosses top_p stays, hence the mass before each token and not the mass up to it.
    crossing = jnp.sum(mass[..., :-1] < row.top_p, axis=-1, keepdims=True)
    last = jnp.minimum(jnp.where(nucleus, crossing, k - 1), jnp.minimum(k, length) - 1)
    score, token = (jnp.take_along_axis(each, last, axis=-1) for each in (values, tokens))
    edge = _Edge(score, token, jnp.zeros_like(score), known)
    return edge._replace(log_total=_log_total(_keep(values, tokens, edge, row)))


def with_shortlist(
    logits: Float[Array, "B *T V"], settings: RowSettings, then: Callable[[Shortlist], Result]
) -> Result:
    """What `then` makes of the tokens that temperature, top-k, top-p and min-p leave to be drawn, for rows that draw.

    `then` is traced twice: for a list of few tokens, most probable first, and for the vocabulary in order. Scores are
    float32 and their maximum is 0. What it gets for greedy rows is of no use.
    """
    row, size = settings.along(logits), vocabulary_size(logits)
    scores = logits.astype(jnp.float32)
    # The maximum goes first, so that small temperatures do not overflow and sums with noise keep their precision.
    scores = (scores - maximum(scores)) * (1 / jnp.where(row.draws, row.temperature, 1))
    # They are compared for equality below. As operands of conditionals they are computed once: XLA may round them
    # differently (by a fused multiply and add) when it computes them anew for each use.
    beyond = (_limit(row, size) < size) | (row.top_p < 1)
    filtered = row.draws & (beyond | (row.min_score > -jnp.inf))
    none = jnp.full((*scores.shape[:-1], 1), -jnp.inf)
    unknown = _Edge(none, jnp.full(none.shape, size, jnp.int32), none, jnp.zeros(none.shape, bool))

    def update(edge: _Edge, found: _Edge, which: Array) -> _Edge:
        return jax.tree.map(lambda old, new: jnp.where(which, new, old), edge, found)

    width, total = min(SHORTLIST, size), _nucleus_total(scores, row, size)

    def look() -> tuple[Array, Array, _Edge]:
        near = _largest(scores, min(FIRST_LOOK, size), width)
        enough = everywhere(_is_known(near, total, row, size) | ~filtered)
        largest = lax.cond(enough, lambda: near, lambda: _largest(scores, width, width))
        found = _edge(largest, total, row, size, _is_known(largest, total, row, size))
        return largest.values, largest.tokens, update(unknown, found, filtered & found.known)

    def skip() -> tuple[Array, Array, _Edge]:
        nothing = jnp.zeros((*scores.shape[:-1], width))
        return nothing, nothing.astype(jnp.int32), unknown

    values, few, edge = lax.cond(anywhere(filtered), look, skip)

    def short() -> Result:
        return then(Shortlist(few, _keep(values, few, edge, row), edge.log_total))

    def whole() -> Result:
        # What the list has found out stays, so that a row does not show in the last place how far its batch looked.
        far = row.draws & ~edge.known & beyond

        def look_far() -> _Edge:
            return update(edge, _edge(_largest(scores, size, size), total, row, size, far), far)

        last = lax.cond(anywhere(far), look_far, lambda: edge) if size > SHORTLIST else edge
        every = whole_row(scores)
        tokens = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), every.shape)
        kept = _keep(every, tokens, last, row)
        log_total = jnp.where(edge.known, edge.log_total, _log_total(kept))
        return then(Shortlist(tokens, kept, log_total, in_order=True))

    return lax.cond(everywhere(edge.known | ~row.draws), short, whole)


def spread(candidates: Shortlist, vocab_size: int) -> Float[Array, "B *T V"]:
    """The log-probabilities of the whole vocabulary, -inf for excluded tokens."""
    if candidates.in_order:
        return candidates.log_probs
    rows = candidates.scores.shape[:-1]
    excluded = jnp.full((*rows, vocab_size), -jnp.inf, jnp.float32)
    # Padding bears the name of a token, whose probability it must not overwrite.
    tokens = jnp.where(candidates.scores > -jnp.inf, candidates.tokens, vocab_size)
    return jnp.put_along_axis(excluded, tokens, candidates.log_probs, axis=-1, inplace=False, mode="drop")


@partial(jax.jit, inline=True)  # outside of a program, JAX would compile its conditionals in every call
def warp(logits: Float[Array, "B *T V"], settings: RowSettings) -> Float[Array, "B *T Va"]:
    """The distribution that tokens are drawn from: normalised log-probabilities, float32, -inf for excluded tokens.

    In greedy rows all of the probability is on the argmax.
    """
    size = vocabulary_size(logits)
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


def sample_shortlist(candidates: Shortlist, key: Key, purpose: Purposes = Purpose.TOKEN) -> Int[Array, "B *T"]:
    """A token of each shortlist, with the noise of its tokens by the key of its place and the purpose."""
    choice = sample(candidates.scores, gumbel_at(key, purpose, candidates.tokens))
    return jnp.take_along_axis(candidates.tokens, choice[..., None], axis=-1)[..., 0].astype(jnp.int32)


@partial(jax.jit, inline=True)  # as above
def sample_tokens(
    logits: Float[Array, "B *T V"],
    *,
    settings: RowSettings,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
) -> Int[Array, "B *T"]:
    """Plain sampling: the token at each absolute position, a function of the logits and (seed, sequence, position)."""
    best = argmax(logits)

    def drawn() -> Int[Array, "B *T"]:
        key = key_at(settings.seed, sequence, position)
        token = with_shortlist(logits, settings, lambda candidates: sample_shortlist(candidates, key))
        return jnp.where(settings.along(best).draws, token, best)

    return lax.cond(anywhere(settings.draws), drawn, lambda: best)


def top2_margin(logits: Float[Array, "*T V"]) -> Float[Array, "*T"]:
    """Largest logit minus the second largest, float32: how near the argmax is to a tie. V must be at least 2."""
    wide = logits.astype(jnp.float32)
    best = argmax(wide)[..., None]
    others = jnp.where(own_tokens(wide) == best, -jnp.inf, wide)  # on a CPU several times as fast as top_k
    return (values_at(wide, best) - maximum(others))[..., 0]
