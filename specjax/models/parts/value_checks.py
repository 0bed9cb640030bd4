"""What must hold of values that several families have."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from checkpoints.family import ValueCheck


def _not_negative(rates: Float[np.ndarray, "heads"]) -> str | None:
    if (rates < 0).all():
        return None
    return f"decay rates must be negative, -exp(A_log); the largest is {rates.max():.3g}"


def _falling(divisors: Float[np.ndarray, "pairs"]) -> str | None:
    if (divisors >= 1).all() and (np.diff(divisors) >= 0).all():
        return None
    return f"divisors of rotary frequencies begin at 1 and do not fall; these are {divisors[:4]}, ..."


def _not_an_ordering(ids: Int[np.ndarray, "M"]) -> str | None:
    seen = np.bincount(np.clip(ids.reshape(-1), 0, ids.size), minlength=ids.size + 1)
    if ids.min() >= 0 and np.array_equal(seen[: ids.size], np.ones(ids.size)):
        return None
    twice, missing = int((seen[: ids.size] > 1).sum()), int((seen[: ids.size] == 0).sum())
    return f"not an ordering of {ids.size} tokens: {missing} are missing, {twice} occur more than once"


DECAY_RATES = ValueCheck(
    paths=r".*\.delta_net\.a",
    wrong=_not_negative,
    fix="the converter left A_log as it was, or changed it twice: convert the original again",
)
"""What must hold of the decay rates of gated delta nets."""

ROPE_DIVISORS = ValueCheck(
    paths=r"\w+\.rope_factors",
    wrong=_falling,
    fix="the tensor is damaged or of another model: convert the original again",
)
"""What must hold of the divisors of rotary frequencies that were stretched to longer contexts."""

TOKEN_ORDERING = ValueCheck(
    paths=r"mtp\.centroids\.token_ordering",
    wrong=_not_an_ordering,
    fix="the ordering was quantized, cut or made for another vocabulary: convert the original again",
)
"""What must hold of the order in which a centroid head cuts the vocabulary into groups."""
