"""A call of an operation at some sizes, as models make it: to time it, and to compare implementations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.dispatch import Operation
from pallas_kernels.table import Dims


class Given(NamedTuple):
    """The arguments of a call.

    Attributes:
        x: what a model computes just before, such as queries.
        own: what the call changes, such as a recurrent state.
        fixed: what it reads only, such as weights.
    """

    x: Array
    own: Any = ()
    fixed: Any = ()


class Outcome(NamedTuple):
    """What a call gives, and what has become of `Given.own`."""

    results: Any
    own: Any = ()


Call = Callable[[str | None, Given], Outcome]
"""From the name of an implementation, or None, and arguments to the outcome."""


def _all(given: Given, outcome: Outcome) -> Any:
    return outcome


def _as_made(given: Given) -> Given:
    return given


@dataclass(frozen=True)
class Case:
    """A call of some sizes.

    Attributes:
        operation: which one, with its implementations.
        dims: its sizes, as implementations are chosen by.
        make: arguments from a seed.
        call: runs an implementation.
        cruel: from arguments to two others of the same shapes: with NaN where it must leave no trace, and the same with
            finite numbers there. Both have one outcome by the law. None where there is nothing cruel.
        judged: what of an outcome is to be compared, of a call with such arguments.
        law: what must be `judged` of a call with arguments, from them and the finite ones that stand for them. None
            for what the reference gives; it can be too slow, or take too much memory.
        in_use: arguments as they are on average while texts grow, to choose by time; by default those of `make`.
        unread: bytes of the arguments that a call does not read.
    """

    operation: Operation
    dims: Dims
    make: Callable[[int], Given]
    call: Call
    cruel: Callable[[Given], tuple[Given, Given]] | None = None
    judged: Callable[[Given, Outcome], Any] = _all
    law: Callable[[Given, Given], Any] | None = None
    in_use: Callable[[Given], Given] = _as_made
    unread: int = 0

    def wanted(self, given: Given, finite: Given) -> Any:
        """What must be `judged` of a call with arguments, by the law for the finite ones that stand for them."""
        return (self.law or self._by_reference)(given, finite)

    @cached_property
    def _by_reference(self) -> Callable[[Given, Given], Any]:
        return jax.jit(lambda given, finite: self.judged(given, self.call("reference", finite)))

    @property
    def sizes(self) -> str:
        """The dims, as a text for people."""
        return words(self.dims)

    @cached_property
    def num_bytes(self) -> int:
        """What a call reads and writes at least, if everything but what is `unread` is read once."""
        given = jax.eval_shape(lambda: self.make(0))
        return nbytes(given, jax.eval_shape(lambda given: self.call(None, given), given)) - self.unread

    def step(self, impl: str | None, given: Given) -> Given:
        """Arguments of the next call, which needs the outcome of this one. Nothing of the outcome can be left out."""
        outcome = lax.optimization_barrier(self.call(impl, given))
        return Given(_after(given.x, outcome), outcome.own, given.fixed)


def words(dims: Dims) -> str:
    """Sizes as a text, such as "M=4 N=1024"."""
    return " ".join(f"{axis}={size}" for axis, size in dims.items() if size is not None and size is not False)


def nbytes(*trees: Any) -> int:
    """Of arrays, or of what `jax.eval_shape` says of them."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for tree in trees for leaf in jax.tree.leaves(tree))


def _after(x: Array, outcome: Outcome) -> Array:
    """x, to be had when the outcome is there: compilers see that it may be zeros, which it never is."""
    first = next(leaf for leaf in jax.tree.leaves(outcome) if jnp.issubdtype(leaf.dtype, jnp.floating))
    return jnp.where(jnp.isposinf(first.ravel()[0].astype(jnp.float32)), jnp.zeros_like(x), x)
