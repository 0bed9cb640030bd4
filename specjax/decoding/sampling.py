"""From logits to a token: temperature, top-k, top-p, min-p, and a draw by the Gumbel-max trick.

Order of the filters: temperature, top-k, top-p, min-p, as in transformers. llama.cpp's default chain applies the
temperature last, so that for temperatures other than 1 its top-p and min-p see a different distribution and may keep a
different set; top-k alone is the same in both.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt

from specjax.decoding.argmax import argmax
from specjax.decoding.random import Purpose, Purposes, gumbel_at

# A nucleus is almost always far smaller than this; only where it is not is the whole vocabulary sorted.
_NUCLEUS_GUESS = 1024


@dataclass(frozen=True)
class SamplerConfig:
    """How a distribution is made from logits. Hashable: pass it as a static argument.

    temperature: divides the logits; 0 is greedy decoding, and the other settings then have no effect.
    top_k: keep the k most probable tokens; 0 keeps all.
    top_p: keep the smallest set of most probable tokens with total probability >= top_p; 1 keeps all.
    min_p: keep the tokens with probability >= min_p times the largest; 0 keeps all.

    Among equal logits the lower token id is kept first. Raises ValueError for a setting out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self):
        t = self.temperature
        if not (t == 0 or 1e-6 <= t < math.inf):
            raise ValueError(f"temperature is {t}; give 0 for greedy decoding or a finite number of at least 1e-6")
        if not (isinstance(self.top_k, int) and self.top_k >= 0):
            raise ValueError(f"top_k is {self.top_k!r}; give the number of tokens to keep, or 0 to keep all")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; give a probability above 0 and up to 1 (1 keeps all tokens)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; give a fraction from 0 to 1 (0 keeps all tokens)")

    @property
    def greedy(self) -> bool:
        """Whether the argmax is taken and nothing is drawn."""
        return self.temperature == 0


class Shortlist(NamedTuple):
    """The tokens that can still be drawn. With top-k they are k, most probable first, else the vocabulary in order.

    tokens: token ids. scores: log-probabilities up to a constant per row, -inf for tokens that are excluded.
    """

    tokens: Int[Array, "*T M"]
    scores: Float[Array, "*T M"]


def _top_k(x, k):
    """The k largest, the lower index first among equals."""
    # Without the barrier XLA moves later slices into its expansion of top_k, no longer recognises it, and sorts the
    # whole vocabulary: on a CPU that is more than 50 times slower. One barrier for both results would be enough for
    # that, but then XLA's partitioner aborts where the vocabulary is sharded.
    values, index = lax.top_k(x, k)
    return lax.optimization_barrier(values), lax.optimization_barrier(index)


def _nucleus(scores, top_p):
    """Exclude what lies outside the smallest most-probable set with probability >= top_p."""
    size = scores.shape[-1]
    log_total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)

    def last_kept(n):
        values, index = _top_k(scores, n)
        mass = jnp.cumsum(jnp.exp(values - log_total), axis=-1)
        # The token that crosses top_p stays, hence the mass before each token and not the mass up to it.
        last = jnp.sum(mass[..., :-1] < top_p, axis=-1, keepdims=True)
        take = lambda x: jnp.take_along_axis(x, last, axis=-1)  # noqa: E731
        return take(values), take(index), mass[..., -1]

    if size <= _NUCLEUS_GUESS:
        value, index, _ = last_kept(size)
    else:
        guess = last_kept(_NUCLEUS_GUESS)
        value, index = lax.cond(jnp.any(guess[2] < top_p), lambda: last_kept(size)[:2], lambda: guess[:2])
    keep = (scores > value) | ((scores == value) & (jnp.arange(size) <= index))
    return jnp.where(keep, scores, -jnp.inf)


def shortlist(logits: Float[Array, "*T V"], config: SamplerConfig) -> Shortlist:
    """Apply temperature, top-k, top-p and min-p, in this order. Scores are float32 and their maximum is 0.

    Raises ValueError for a greedy config, which has no distribution to filter.
    """
    if config.greedy:
        raise ValueError("shortlist got a greedy config (temperature 0); take the argmax of the logits instead")
    scores = logits.astype(jnp.float32)
    # The maximum goes first, so that small temperatures do not overflow and sums with noise keep their precision.
    scores = (scores - jnp.max(scores, axis=-1, keepdims=True)) / config.temperature
    if 0 < config.top_k < logits.shape[-1]:
        scores, tokens = _top_k(scores, config.top_k)
    else:
        tokens = jnp.broadcast_to(jnp.arange(logits.shape[-1], dtype=jnp.int32), logits.shape)
    if config.top_p < 1:
        scores = _nucleus(scores, config.top_p)
    if config.min_p > 0:
        scores = jnp.where(scores >= math.log(config.min_p), scores, -jnp.inf)
    return Shortlist(tokens, scores)


def warp(logits: Float[Array, "*T V"], config: SamplerConfig) -> Float[Array, "*T V"]:
    """The distribution that tokens are drawn from: normalised log-probabilities, float32, -inf for excluded tokens.

    For a greedy config all of the probability is on the argmax.
    """
    if config.greedy:
        return jnp.where(jnp.arange(logits.shape[-1]) == argmax(logits)[..., None], 0.0, -jnp.inf)
    tokens, scores = shortlist(logits, config)
    logp = jax.nn.log_softmax(scores, axis=-1)
    if tokens.shape == logits.shape:
        return logp
    excluded = jnp.full(logits.shape, -jnp.inf, jnp.float32)
    return jnp.put_along_axis(excluded, tokens, logp, axis=-1, inplace=False)


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
    seed: UInt[Array, ""] | int,
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
    config: SamplerConfig,
    seed: UInt[Array, ""] | int,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
) -> Int[Array, "B *T"]:
    """Plain sampling: the token at each absolute position, a function of the logits and (seed, sequence, position)."""
    if config.greedy:
        return argmax(logits)
    return sample_shortlist(shortlist(logits, config), seed=seed, sequence=sequence, position=position)


def top2_margin(logits: Float[Array, "*T V"]) -> Float[Array, "*T"]:
    """Largest logit minus the second largest, float32: how near the argmax is to a tie. V must be at least 2."""
    best = _top_k(logits.astype(jnp.float32), 2)[0]
    return best[..., 0] - best[..., 1]
