"""Where two decodings that should be equal part, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import jax.numpy as jnp
import numpy as np

from specjax.decoding.random import Purpose, gumbel_at
from specjax.generation import GenerateOptions
from specjax.model import Model

TOLERANCE = 1e-3
"""A margin below this share of the largest logit is a near-tie in float32; see `tolerance_of`."""


@dataclass(frozen=True)
class Divergence:
    """The first difference of two continuations of one prompt.

    Attributes:
        position: index among the generated tokens.
        tokens: what each of them has there.
        margin: how far apart the logits of the two tokens are (with sampling: the logits plus the position's noise,
            which is what decides).
        relative_margin: the margin over the largest absolute logit.
        tolerance: up to which relative margin rounding is the explanation.
    """

    position: int
    tokens: tuple[int, int]
    margin: float
    relative_margin: float
    tolerance: float

    @property
    def near_tie(self) -> bool:
        """Whether the two tokens tie within rounding."""
        return self.relative_margin < self.tolerance

    def __str__(self) -> str:
        kind = "a near-tie" if self.near_tie else "NOT a near-tie"
        return (
            f"token {self.position} is {self.tokens[0]} here and {self.tokens[1]} there; their logits differ by"
            f" {self.margin:.3g} ({self.relative_margin:.2g} of the largest logit): {kind} (limit {self.tolerance:.2g})"
        )


def tolerance_of(*dtypes: str) -> float:
    """The relative margin up to which two tokens tie: `TOLERANCE`, or a few roundings of the coarsest dtype."""
    return max(TOLERANCE, *(4 * float(jnp.finfo(dtype).eps) for dtype in dtypes))


def find_divergence(
    model: Model, prompt: Sequence[int], options: GenerateOptions, here: Sequence[int], there: Sequence[int]
) -> Divergence | None:
    """Compare two continuations of `prompt` that were made with greedy decoding or with the same noise.

    Returns None when they are equal. Otherwise the logits of the first difference are computed once more.
    """
    pairs = enumerate(zip_longest(here, there, fillvalue=-1))
    position, tokens = next(((index, pair) for index, pair in pairs if pair[0] != pair[1]), (0, None))
    if tokens is None:
        return None
    margin = relative = float("inf")
    if min(tokens) >= 0:
        prefix = [*prompt, *here[:position]]
        logits = model.next_logits(prefix, kv_dtype=options.kv_dtype)
        candidates = np.asarray(tokens)
        scores = logits[candidates]
        if not options.sampler.greedy:
            noise = gumbel_at(
                options.seed,
                jnp.zeros(1, jnp.int32),
                jnp.asarray([len(prefix)]),
                Purpose.TOKEN,
                jnp.asarray(candidates[None]),
            )
            scores = scores + options.temperature * np.asarray(noise[0])
        margin = float(abs(scores[0] - scores[1]))
        relative = margin / float(np.abs(logits).max())
    tolerance = tolerance_of(_matrix_dtype(model), options.kv_dtype)
    return Divergence(position, tokens, margin, relative, tolerance)


def _matrix_dtype(model: Model) -> str:
    return str(model.params["target"]["embed"]["weight"].dtype)
