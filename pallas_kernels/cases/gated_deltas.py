"""The gated delta rule: few tokens, prompts, commits; ragged, with NaN in the rows that do not count."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels import gated_delta
from pallas_kernels.cases.case import Case, Given, Outcome, nbytes
from pallas_kernels.gated_delta.implementations import OPERATIONS
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

_PIECE = 4
"""Tokens of a prompt that the reference takes at a time."""


def tokens(dims: Dims, seed: int) -> tuple[tuple[Array, ...], Array]:
    """q, k, g and beta of B sequences of T tokens, and v, as a layer makes them."""
    batch, count, hk, hv, dk, dv = _sizes(dims)
    q, k = (normal(seed + i, batch, count, hk, dk) / math.sqrt(dk) for i in range(2))
    g = -jax.nn.softplus(normal(seed + 2, batch, count, hv) - 3)
    return (q, k, g, jax.nn.sigmoid(normal(seed + 3, batch, count, hv))), normal(seed + 4, batch, count, hv, dv)


def _sizes(dims: Dims) -> tuple[int, ...]:
    return tuple(dims.get("B", 1) if axis == "B" else dims[axis] for axis in ("B", "T", "Hk", "Hv", "Dk", "Dv"))


def _head_map(dims: Dims) -> dict[str, Any]:
    return {"head_map": "grouped" if dims.get("grouped") else "tiled"}


def prefill(dims: Dims) -> Case:
    """Many tokens, and the state after them."""

    def call(impl: str | None, given: Given) -> Outcome:
        (q, k, g, beta), n_valid = given.fixed
        return Outcome(
            *gated_delta.prefill(q, k, given.x, g, beta, given.own, n_valid=n_valid, impl=impl, **_head_map(dims))
        )

    by_reference = jax.jit(partial(call, "reference"))

    def law(given: Given, finite: Given) -> Outcome:
        """The reference would be a program of all tokens, one after the other: that of a piece, on each piece."""
        inputs, n_valid = finite.fixed
        outs, state = [], finite.own
        for start in range(0, dims["T"], _PIECE):
            piece = jax.tree.map(lambda x: x[:, start : start + _PIECE], (finite.x, inputs))  # noqa: B023
            count = piece[0].shape[1]
            out, state = by_reference(Given(piece[0], state, (piece[1], jnp.clip(n_valid - start, 0, count))))
            outs.append(out)
        return Outcome(jnp.concatenate(outs, axis=1), state)

    make = partial(_make, dims, _state)
    return Case(OPERATIONS["prefill"], dims, make, call, partial(_cruel, dims), law=law)


def verify(dims: Dims) -> Case:
    """A few tokens, and their records, which take the place of those before."""

    def call(impl: str | None, given: Given) -> Outcome:
        ((q, k, g, beta), state), n_valid = given.fixed
        out, records = gated_delta.verify(q, k, given.x, g, beta, state, n_valid=n_valid, impl=impl, **_head_map(dims))
        return Outcome(out, records.u)

    def make(seed: int) -> Given:
        given = _make(dims, _state, seed)
        inputs, n_valid = given.fixed
        return Given(given.x, jnp.zeros_like(given.x), ((inputs, given.own), n_valid))

    def cruel(given: Given) -> tuple[Given, Given]:
        (inputs, state), n_valid = given.fixed
        twins = _cruel(dims, given._replace(fixed=(inputs, n_valid)))
        poisoned, clean = (twin._replace(fixed=((twin.fixed[0], state), twin.fixed[1])) for twin in twins)
        return poisoned, clean

    def judged(given: Given, outcome: Outcome) -> Any:
        """Nobody reads records of rows that do not count."""
        counts = _counted(dims, given.fixed[1])[..., None, None]
        return outcome.results, jnp.where(counts, outcome.own, 0)

    return Case(OPERATIONS["verify"], dims, make, call, cruel, judged)


def commit(dims: Dims) -> Case:
    """The state after recorded tokens."""

    def call(impl: str | None, given: Given) -> Outcome:
        return Outcome((), gated_delta.commit(given.own, given.fixed, given.x, impl=impl, **_head_map(dims)))

    def make(seed: int) -> Given:
        (_, k, g, _), u = tokens(dims, seed)
        return Given(_full(dims), _state(dims, seed), gated_delta.Records(k, u, g))

    def cruel(given: Given) -> tuple[Given, Given]:
        n = _ragged(dims)
        records = jax.tree.map(lambda x: _poisoned(x, _counted(dims, n)), given.fixed)
        return given._replace(x=n, fixed=records), given._replace(x=n)

    return Case(OPERATIONS["commit"], dims, make, call, cruel)


def verify_snapshots(dims: Dims) -> Case:
    """A few tokens with the state after each of the last M."""
    batch, slots = _sizes(dims)[0], dims["M"]

    def call(impl: str | None, given: Given) -> Outcome:
        (q, k, g, beta), n_valid = given.fixed
        slot = jnp.full((batch,), min(1, slots - 1), jnp.int32)
        return Outcome(
            *gated_delta.verify_snapshots(
                q, k, given.x, g, beta, given.own, slot, n_valid=n_valid, impl=impl, **_head_map(dims)
            )
        )

    def states(dims: Dims, seed: int) -> Array:
        _, _, _, hv, dk, dv = _sizes(dims)
        return normal(seed + 5, batch, slots, hv, dk, dv)

    make = partial(_make, dims, states)
    unread = nbytes(jax.eval_shape(lambda: states(dims, 0))) * (slots - 1) // slots
    return Case(OPERATIONS["verify_snapshots"], dims, make, call, partial(_cruel, dims), unread=unread)


def _make(dims: Dims, states: Any, seed: int) -> Given:
    inputs, v = tokens(dims, seed)
    return Given(v, states(dims, seed), (inputs, _full(dims)))


def _state(dims: Dims, seed: int) -> Array:
    batch, _, _, hv, dk, dv = _sizes(dims)
    return normal(seed + 5, batch, hv, dk, dv)


def _full(dims: Dims) -> Array:
    return jnp.full(_sizes(dims)[:1], dims["T"], jnp.int32)


def _ragged(dims: Dims) -> Array:
    """[B]: some of the tokens, none, all, and so on."""
    count = dims["T"]
    return jnp.resize(jnp.array([(count + 1) // 2, 0, count], jnp.int32), _sizes(dims)[:1])


def _counted(dims: Dims, n: Array) -> Array:
    """[B, T]: which rows count."""
    return jnp.arange(dims["T"]) < n[:, None]


def _poisoned(x: Array, counted: Array) -> Array:
    return jnp.where(counted.reshape(counted.shape + (1,) * (x.ndim - 2)), x, jnp.nan)


def _cruel(dims: Dims, given: Given) -> tuple[Given, Given]:
    n = _ragged(dims)
    x, inputs = jax.tree.map(lambda x: _poisoned(x, _counted(dims, n)), (given.x, given.fixed[0]))
    return given._replace(x=x, fixed=(inputs, n)), given._replace(fixed=(given.fixed[0], n))
