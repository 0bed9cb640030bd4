"""What a program asks of a row over the vocabulary, of which a part of the model may have a part.

Where a model is split, each part has the logits of its own tokens, in order of the parts (see `specjax.mesh.columns`).
What comes out is the same in all of them.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.softmax_totals import Totals, softmax_totals
from specjax.mesh.columns import values_at
from specjax.mesh.shards import gathered, largest, part_index, parts, total


def vocabulary_size(x: Float[Array, "*T V"]) -> int:
    """How many tokens all parts have together, those included that only fill up the last part."""
    return x.shape[-1] * parts()


def whole_row(x: Float[Array, "*T V"]) -> Float[Array, "*T Va"]:
    """The row over the whole vocabulary."""
    return gathered(x)


def own_tokens(x: Float[Array, "*T V"]) -> Int[Array, "V"]:
    """The tokens that this part has."""
    return jnp.arange(x.shape[-1], dtype=jnp.int32) + (part_index() * x.shape[-1] if parts() > 1 else 0)


def maximum(x: Float[Array, "*T V"]) -> Float[Array, "*T 1"]:
    """The largest value of all parts."""
    return largest(jnp.max(x, axis=-1, keepdims=True))


def sum_of_exp(x: Float[Array, "*T V"]) -> Float[Array, "*T 1"]:
    """The sum of exp(x) over all parts."""
    return total(jnp.sum(jnp.exp(x), axis=-1, keepdims=True))


def totals(x: Float[Array, "*T V"]) -> Totals:
    """The log of the sum of exp(x), of numbers of any size, and the entropy of the softmax; see `softmax_totals`."""
    own = softmax_totals(x)
    if parts() == 1:
        return own
    most = largest(own.log_total)
    share = jnp.exp(own.log_total - most)  # of the part with the largest total
    log_sum = jnp.log(total(share))
    share = share * jnp.exp(-log_sum)
    return Totals(most + log_sum, total(share * own.entropy - xlogy(share, share)))


def logsumexp(x: Float[Array, "*T V"]) -> Float[Array, "*T 1"]:
    """The log of the sum of exp(x), of numbers of any size."""
    return totals(x).log_total[..., None]


def entries_at(table: Shaped[Array, "n V"], rows: Int[Array, "B"], tokens: Int[Array, "B"]) -> Shaped[Array, "B"]:
    """Of each given row of a table the entry of a token."""
    if parts() == 1:
        return table[rows, tokens]
    return values_at(table[rows], tokens[:, None])[:, 0]


def any_token(x: Bool[Array, "*T V"]) -> Bool[Array, "*T 1"]:
    """Whether it is true of any token."""
    return largest(jnp.any(x, axis=-1, keepdims=True).astype(jnp.int32)) > 0
