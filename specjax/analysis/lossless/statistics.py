"""Chi-square tests, and the places of tokens in their distributions.

If a token is drawn from p, the probability of all tokens that come before it in some order, plus a random share of its
own, is uniform from 0 to 1. So are these *places* of all tokens of all texts, and they are independent of each other
and of everything that came before, although every token has another distribution. Tokens stand in the order of their
probability here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaincc
from jaxtyping import Array, Float, Int

LEAST_EXPECTED = 10
"""Cells that are expected fewer times than this are put together."""


LEAST = 1e-30
"""The least that a token is expected, so that one whose probability underflows is rare and not impossible."""


@jax.jit
def places(
    logp: Float[Array, "*T V"], tokens: Int[Array, "*T"], share: Float[Array, "*T"]
) -> tuple[Float[Array, "*T"], Float[Array, "*T"]]:
    """The place of each token in its distribution, and its probability; `share` is uniform."""
    p = jnp.exp(logp)
    own = jnp.take_along_axis(p, tokens[..., None], axis=-1)
    before = (p > own) | ((p == own) & (jnp.arange(p.shape[-1]) < tokens[..., None]))
    place = jnp.sum(jnp.where(before, p, 0), axis=-1) + share * own[..., 0]
    return place / jnp.sum(p, axis=-1), own[..., 0]


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """The p-value of counts; cells that are expected rarely count as one."""
    observed, expected = np.ravel(observed).astype(float), np.ravel(expected).astype(float)
    if observed[expected <= 0].any():
        return 0.0
    order = np.argsort(-expected)
    common = int(np.sum(expected >= LEAST_EXPECTED))
    cells = [np.append(counts[order][:common], counts[order][common:].sum()) for counts in (observed, expected)]
    if cells[1][-1] < LEAST_EXPECTED and common:
        cells = [np.append(counts[: common - 1], counts[common - 1 :].sum()) for counts in cells]
    return _tail(float(np.sum((cells[0] - cells[1]) ** 2 / np.maximum(cells[1], 1e-9))), len(cells[0]) - 1)


def uniform(values: np.ndarray, bins: int = 20) -> float:
    """The p-value of values that should be uniform from 0 to 1."""
    return chi_square(_counts(values, bins), np.full(bins, len(values) / bins))


def independent_uniform(first: np.ndarray, second: np.ndarray, bins: int = 8) -> float:
    """The p-value of pairs that should be uniform in the unit square."""
    cells = _cell(first, bins) * bins + _cell(second, bins)
    return chi_square(np.bincount(cells, minlength=bins**2), np.full(bins**2, len(cells) / bins**2))


def independent_of(values: np.ndarray, place: np.ndarray, bins: int = 8) -> float:
    """The p-value of places that should not depend on some values, whose size alone counts."""
    edges = np.unique(np.quantile(values, np.arange(1, bins) / bins))
    table = np.zeros((len(edges) + 1, bins))
    np.add.at(table, (np.searchsorted(edges, values), _cell(place, bins)), 1)
    return _homogeneous(table[table.sum(axis=1) >= bins * LEAST_EXPECTED])


def same_distribution(here: np.ndarray, there: np.ndarray) -> float:
    """The p-value of two samples of tokens that should have one distribution, whatever that is."""
    tokens, cells = np.unique(np.concatenate([here, there]), return_inverse=True)
    counts = np.stack([np.bincount(part, minlength=len(tokens)) for part in np.split(cells, [len(here)])])
    order = np.argsort(-counts.sum(axis=0))
    common = int(np.sum(counts.sum(axis=0) >= 4 * LEAST_EXPECTED))
    rare = counts[:, order[common:]].sum(axis=1, keepdims=True)
    return _homogeneous(np.concatenate([counts[:, order[:common]], rare], axis=1))


def _homogeneous(table: np.ndarray) -> float:
    """The p-value of rows of counts that should have one distribution."""
    table = table[:, table.sum(axis=0) > 0]
    if min(table.shape) < 2:
        return 1.0
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    return _tail(float(np.sum((table - expected) ** 2 / expected)), (table.shape[0] - 1) * (table.shape[1] - 1))


def _tail(statistic: float, degrees: int) -> float:
    return float(gammaincc(degrees / 2, statistic / 2)) if degrees > 0 else 1.0


def _cell(values: np.ndarray, bins: int) -> np.ndarray:
    return np.minimum((values * bins).astype(int), bins - 1)


def _counts(values: np.ndarray, bins: int) -> np.ndarray:
    return np.bincount(_cell(values, bins), minlength=bins)
