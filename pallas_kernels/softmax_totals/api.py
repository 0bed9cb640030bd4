"""The normalizer and the entropy of a softmax over a long last axis, such as a vocabulary.

Rows are read and nothing of their length is written. On GPUs and TPUs XLA makes this of the plain form.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pallas_kernels import dispatch
from pallas_kernels.arguments import expect_array
from pallas_kernels.softmax_totals.implementations import SOFTMAX_TOTALS


class Totals(NamedTuple):
    """Sums over the softmax of each row.

    Attributes:
        log_total: log(sum(exp(x))), so that x - log_total are log-probabilities.
        entropy: of the softmax, in nats.
    """

    log_total: Float[Array, "..."]
    entropy: Float[Array, "..."]


def softmax_totals(x: Float[Array, "... V"], *, impl: str | None = None) -> Totals:
    """The logarithm of the sum of exponentials of each row, and the entropy of its softmax, in float32.

    Args:
        x: the rows. -inf has probability 0. A row with a NaN or with +inf gives NaN, and one of nothing but -inf gives
            -inf and 0.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: x is no array of floats, or one of its axes is empty.
    """
    expect_array("softmax_totals", "x", x, "... V")
    run = dispatch.choose(SOFTMAX_TOTALS, impl, {"rows": math.prod(x.shape[:-1]), "V": x.shape[-1]}).run
    return Totals(*run(x.astype(jnp.float32)))


def explain(*, V: int, platform: str | None = None) -> str:
    """Which implementation `softmax_totals` chooses for rows of V values, and why not the others."""
    return dispatch.explain(SOFTMAX_TOTALS, {"V": V}, platform)
