"""The probability of every text under an acceptance rule, by enumeration over a tiny vocabulary.

A `Language` is a table of logits for every text shorter than a few tokens, the target's and a drafter's. All drafts and
all outcomes of the random numbers of all rounds are gone through with the functions that the loop calls. So what comes
out is exact but for float32, and no number of samples could hide a bias behind noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from specjax.decoding.acceptance import block, propose_token, rejection
from specjax.decoding.acceptance.correction import Correct
from specjax.decoding.draft_control import effective_drafts, wanted_drafts
from specjax.decoding.sampling import Shortlist, warp, with_shortlist
from specjax.decoding.settings import DraftConfig, RowSettings, SamplerConfig, Settings

CORRECT: dict[str, Correct] = {"rejection": rejection.correction, "block": block.correction}
"""How each rule decides that keeps the target's distribution."""

DraftLengths = Callable[[np.ndarray, np.ndarray, np.ndarray], ArrayLike]
"""From the drafter's logits [B, K, V], the drafts [B, K] and the tokens that a text may still get [B]: how many drafts
of each row are verified."""


@dataclass(frozen=True, eq=False)
class Language:
    """Logits after every text shorter than `length` over a vocabulary of V tokens.

    A text is a node: the empty one is 0, and token t takes node n to node n V + 1 + t.

    Attributes:
        target, drafter: [nodes, V] float32.
        length: of the longest texts, in tokens.
    """

    target: np.ndarray
    drafter: np.ndarray
    length: int

    @classmethod
    def alike(cls, vocab_size: int, length: int, seed: int = 0) -> Language:
        """Random logits; target and drafter are alike, as real ones are."""
        nodes = (vocab_size**length - 1) // (vocab_size - 1)
        target, noise = np.random.default_rng(seed).standard_normal((2, nodes, vocab_size), np.float32)
        return cls(np.float32(1.2) * target, np.float32(0.9) * target + np.float32(0.8) * noise, length)

    @property
    def vocab_size(self) -> int:
        return self.target.shape[1]

    @cached_property
    def depth(self) -> np.ndarray:
        """How many tokens the text of each node has."""
        depth = np.zeros(len(self.target), int)
        for node in range(1, len(depth)):
            depth[node] = depth[(node - 1) // self.vocab_size] + 1
        return depth

    def texts(self) -> list[tuple[int, ...]]:
        """All texts of the full length."""
        return list(itertools.product(range(self.vocab_size), repeat=self.length))


def nodes_along(node: np.ndarray, drafts: np.ndarray, vocab_size: int) -> np.ndarray:
    """The nodes before and after each draft, [B, K + 1]."""
    nodes = [node]
    for column in drafts.T:
        nodes.append(nodes[-1] * vocab_size + 1 + column)
    return np.stack(nodes, axis=1)


def target_odds(language: Language, sampler: SamplerConfig) -> np.ndarray:
    """The probability of every text by the target alone, [V] * length."""
    p = np.exp(np.asarray(_warped(language.target, sampler), np.float64))
    p /= p.sum(axis=1, keepdims=True)
    odds = np.zeros([language.vocab_size] * language.length)
    for text in language.texts():
        node, odds[text] = 0, 1.0
        for token in text:
            odds[text] *= p[node, token]
            node = node * language.vocab_size + 1 + token
    return odds


def stopping(draft: DraftConfig) -> DraftLengths:
    """The lengths that these settings lead to, with the drafter's real confidences."""

    @jax.jit
    def lengths(draft_logits: Array, drafts: Array, budget: Array) -> Array:
        settings = RowSettings.of([Settings(draft=draft)] * len(drafts))
        none = jnp.zeros(len(drafts), jnp.int32)
        draws = {"settings": settings, "sequence": none, "position": none}
        columns = [
            propose_token(logits, rule="greedy", **draws).confidence for logits in jnp.moveaxis(draft_logits, 1, 0)
        ]
        return effective_drafts(jnp.stack(columns, axis=1), settings, wanted_drafts(settings, budget, none > 0))

    return lengths


class Odds(NamedTuple):
    """What speculation makes of a language.

    Attributes:
        texts: the probability of every text, [V] * length.
        accepted: the expected number of drafts that stand in the first round.
    """

    texts: np.ndarray
    accepted: float


def speculation_odds(
    correct: Correct,
    language: Language,
    n_drafts: int,
    sampler: SamplerConfig,
    draft_lengths: DraftLengths,
    *,
    drawn: bool | np.ndarray = True,
) -> Odds:
    """What rounds of `n_drafts` drafts make of a language under a rule.

    Args:
        correct: the rule.
        language: see `Language`.
        n_drafts: K, in all rounds.
        sampler: how logits become distributions.
        draft_lengths: see `DraftLengths`.
        drawn: whether drafts are drawn; otherwise each is the drafter's argmax, a function of the text. Or, [nodes]
            bool, the texts after which a round draws its drafts: the others then have probabilities too, 1 and 0.
    """
    size, nodes = language.vocab_size, len(language.target)
    blocks = np.array(list(itertools.product(range(size), repeat=n_drafts)))
    start, drafts = np.repeat(np.arange(nodes), len(blocks)), np.tile(blocks, (nodes, 1))
    along = np.minimum(nodes_along(start, drafts, size), nodes - 1)  # those too deep are beyond the budget
    draft_logits = language.drafter[along[:, :-1]]
    n_drafted = np.asarray(draft_lengths(draft_logits, drafts, language.length - language.depth[start]))
    draws = np.broadcast_to(drawn, nodes)[start, None, None]
    logq = np.where(draws, _warped(draft_logits, sampler), _warped(draft_logits, SamplerConfig()))
    weight = np.take_along_axis(np.exp(np.asarray(logq, np.float64)), drafts[..., None], axis=-1)[..., 0].prod(axis=1)
    stated = logq if np.any(drawn) else None
    outcomes = _outcomes(correct, language.target[along], drafts, stated, n_drafted, sampler)

    rest: dict[int, np.ndarray] = {}
    for node in reversed(range(nodes)):
        rest[node] = np.zeros([size] * (language.length - language.depth[node]))
        for row in range(node * len(blocks), (node + 1) * len(blocks)):
            for probability, n_accepted, following in outcomes:
                n, chance = int(n_accepted[row]), weight[row] * probability[row]
                if not chance:
                    continue
                for token in range(size):
                    child = int(along[row, n]) * size + 1 + token
                    rest[node][(*drafts[row, :n], token)] += chance * following[row, token] * rest.get(child, 1.0)
    accepted = sum((weight * probability * n_accepted)[: len(blocks)].sum() for probability, n_accepted, _ in outcomes)
    return Odds(rest[0], float(accepted))


def _outcomes(
    correct: Correct,
    logits: np.ndarray,
    drafts: np.ndarray,
    logq: np.ndarray | None,
    n_drafted: np.ndarray,
    sampler: SamplerConfig,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All that the random numbers can lead to: its probability, how many drafts stand, and the next token's
    distribution, of each row.

    A rule compares each random number with a threshold. It is found by bisection, where the drafts before are accepted
    and those behind are not.
    """
    n_rows, n_drafts = drafts.shape
    judge = partial(_judge, _alike(n_rows, sampler), correct=correct)
    thresholds = np.zeros((n_rows, n_drafts))
    for place in range(n_drafts):
        low, high = np.zeros(n_rows), np.ones(n_rows)
        u = np.zeros((n_rows, n_drafts), np.float32)
        u[:, place + 1 :] = 1
        for _ in range(24):
            u[:, place] = (low + high) / 2
            passes = np.asarray(judge(u, logits, drafts, logq, n_drafted)[0]) > place
            low, high = np.where(passes, u[:, place], low), np.where(passes, high, u[:, place])
        thresholds[:, place] = (low + high) / 2
    outcomes = []
    for misses in itertools.product((0, 1), repeat=n_drafts):
        miss = np.array(misses, bool)
        probability = np.where(miss, 1 - thresholds, thresholds).prod(axis=1)
        u = np.broadcast_to(miss.astype(np.float32), drafts.shape)
        n_accepted, following = map(np.asarray, judge(u, logits, drafts, logq, n_drafted))
        outcomes.append((probability, n_accepted, following.astype(np.float64)))
    return outcomes


@partial(jax.jit, static_argnames="correct")
def _judge(
    settings: RowSettings,
    u: Array,
    logits: Array,
    drafts: Array,
    logq: Array | None,
    n_drafted: Array,
    *,
    correct: Correct,
) -> tuple[Array, Array]:
    """How many drafts the rule accepts with these random numbers, and the distribution that it then draws from."""

    def decide(candidates: Shortlist) -> tuple[Array, Array]:
        n_accepted, _, following = correct(candidates, drafts, logq, n_drafted, u)
        one_hot = jax.nn.one_hot(following.tokens, logits.shape[-1])
        return n_accepted, jnp.einsum("bn,bnv->bv", jax.nn.softmax(following.scores), one_hot)

    return with_shortlist(logits, settings, decide)


_warp = jax.jit(warp)


def _warped(logits: np.ndarray, sampler: SamplerConfig) -> Array:
    return _warp(logits, _alike(len(logits), sampler))


def _alike(count: int, sampler: SamplerConfig) -> RowSettings:
    return RowSettings.of([Settings(sampler)] * count)
