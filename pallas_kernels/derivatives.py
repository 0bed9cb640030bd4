"""Derivatives of kernels that have none of their own."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array


def with_derivatives_of(plain: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run(x, *others)` with the derivatives in x that `plain(x, *others)` has; the others are constants."""

    @jax.custom_jvp
    def call(x: Array, others: tuple[Any, ...]) -> Any:
        return run(x, *others)

    @call.defjvp
    def derivative(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        x, others = primals
        _, tangent = jax.jvp(lambda x: plain(x, *others), (x,), tangents[:1])
        return call(x, others), tangent

    return lambda x, *others: call(x, others)
