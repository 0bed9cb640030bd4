"""Rows over an axis that is split, such as a vocabulary: each part of a model has some columns, in order of the parts.

Where columns do not divide, every part has as many as the first one. What stands behind the end is nobody's: scores
there are -inf, and other values mean nothing.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from specjax.mesh.shards import gathered, part_index, parts, total


def share(count: int) -> int:
    """How many of so many columns each part has."""
    return -(-count // parts())


def whole_width(count: int) -> int:
    """How many columns all parts have together, those behind the end included."""
    return share(count) * parts()


def up_to(x: Float[Array, "*T n"], count: int) -> Float[Array, "*T n"]:
    """A part's scores of so many columns in all, -inf behind the end."""
    if x.shape[-1] * parts() <= count:
        return x
    return jnp.where(jnp.arange(x.shape[-1]) + part_index() * x.shape[-1] < count, x, -jnp.inf)


def own_columns(x: Shaped[Array, "*T N"], fill: float = 0) -> Shaped[Array, "*T n"]:
    """Of rows that every part has whole, the columns of this part; `fill` is what stands behind the end."""
    if parts() == 1:
        return x
    size = share(x.shape[-1])
    padding = [(0, 0)] * (x.ndim - 1) + [(0, size * parts() - x.shape[-1])]
    return lax.dynamic_slice_in_dim(jnp.pad(x, padding, constant_values=fill), part_index() * size, size, axis=-1)


def values_at(x: Shaped[Array, "*T n"], columns: Int[Array, "*T m"]) -> Shaped[Array, "*T m"]:
    """The values in some columns, which every part asks for; all of them get them."""
    if parts() == 1:
        return jnp.take_along_axis(x, columns, axis=-1)
    own = columns - part_index() * x.shape[-1]
    here = (own >= 0) & (own < x.shape[-1])
    found = jnp.take_along_axis(x, jnp.clip(own, 0, x.shape[-1] - 1), axis=-1)
    return total(jnp.where(here, found, 0))


def top_k(x: Float[Array, "*T n"], k: int) -> tuple[Float[Array, "*T k"], Int[Array, "*T k"]]:
    """The k largest values of all parts and their columns, largest first, the lower column first among equals."""
    if parts() == 1 or k == 0:
        return _top_k(x, k)
    values, columns = _top_k(x, min(k, x.shape[-1]))
    values, columns = gathered(values), gathered(columns + part_index() * x.shape[-1])
    best, index = _top_k(values, k)  # the parts are in order, and so are equals
    return best, jnp.take_along_axis(columns, index, axis=-1)


def _top_k(x: Float[Array, "*T n"], k: int) -> tuple[Float[Array, "*T k"], Int[Array, "*T k"]]:
    # Without the barrier XLA moves later slices into its expansion of top_k, no longer recognises it, and sorts the
    # whole vocabulary: on a CPU that is more than 50 times slower. One barrier for both results would be enough for
    # that, but then XLA's partitioner aborts where the vocabulary is sharded.
    values, index = lax.top_k(x, k)
    return lax.optimization_barrier(values), lax.optimization_barrier(index)
