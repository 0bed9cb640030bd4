"""Synthetic acceptance: lots decide, for measuring speed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import jax.numpy as jnp
from jaxtyping import Array, Float

from specjax.decoding.acceptance.drawing import Decision, Drafted, decided
from specjax.decoding.acceptance.verdict import Verdict, leading, row_at
from specjax.decoding.argmax import argmax
from specjax.decoding.random import Key, Purpose, key_at, uniform
from specjax.decoding.sampling import Shortlist, sample_shortlist


@dataclass(frozen=True)
class Synthetic:
    """Accepts drafts at random, whatever the target says. NOT LOSSLESS: the text means nothing.

    For measuring speed where acceptance means nothing, as with random weights: all else in a round is computed as under
    the coupled rule.

    Attributes:
        probabilities: of accepting draft 1, of accepting draft 2 when draft 1 stands, and so on.

    Raises:
        ValueError: there are none, or one is not from 0 to 1.
    """

    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.probabilities or not all(0 <= p <= 1 for p in self.probabilities):
            raise ValueError(f"probabilities are {self.probabilities}; give one from 0 to 1 for each draft of a round")

    def tokens_per_round(self, n_drafts: int) -> float:
        """The expected tokens of a round of `n_drafts` drafts: 1 + p1 + p1 p2 + ..."""
        return 1 + sum(accumulate(self.probabilities[:n_drafts], mul))


def accept_synthetic(target_logits: Float[Array, "B R V"], given: Drafted, rule: Synthetic) -> Verdict:
    """Accept with the probabilities of the rule; the next token is the target's choice. Not lossless."""
    u = uniform(key_at(given.settings.seed, given.sequence, given.positions[:, :-1]), Purpose.ACCEPT)
    chances = jnp.array(rule.probabilities[: given.tokens.shape[1]], jnp.float32)
    n_accepted = leading(u < chances, given.n_drafted)

    def decide(candidates: Shortlist, given: Drafted, key: Key) -> Decision:
        return n_accepted, row_at(sample_shortlist(candidates, key), n_accepted)

    return decided(target_logits, given, decide, (n_accepted, row_at(argmax(target_logits), n_accepted)))
