"""The orthonormal Walsh-Hadamard transform of the last axis, in natural order. It is its own inverse."""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pallas_kernels import dispatch
from pallas_kernels.arguments import expect_array, expect_dtype
from pallas_kernels.hadamard.implementations import HADAMARD


def walsh_hadamard(
    x: Float[Array, "... N"],
    *,
    before: Float[Array, " N"] | None = None,
    after: Float[Array, " N"] | None = None,
    impl: str | None = None,
) -> Float[Array, "... N"]:
    """after * H (before * x) / sqrt(N) in float32, where entry (i, j) of H is -1 to the number of bits i and j share.

    Args:
        x: float32, bfloat16 or float16.
        before, after: factors of each value, such as the signs of a random rotation; default: 1.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: N is no power of two, factors that are not [N], another type, or an implementation that does not
            fit.
    """
    if not getattr(x, "shape", ()):
        raise ValueError(f"walsh_hadamard: x is {x!r}; accepted: an array [..., N]")
    expect_dtype("walsh_hadamard", "x", x)
    width = x.shape[-1]
    _expect_power_of_two("walsh_hadamard", width)
    for name, factors in {"before": before, "after": after}.items():
        if factors is None:
            continue
        expect_array("walsh_hadamard", name, factors, "N")
        if factors.shape != (width,):
            raise ValueError(f"walsh_hadamard: {name} has shape {factors.shape}; [N] is {(width,)}")
    run = dispatch.choose(HADAMARD, impl, {"rows": math.prod(x.shape[:-1]), "N": width}).run
    return run(x, before, after) if x.size else jnp.zeros(x.shape, jnp.float32)


def explain(*, N: int, platform: str | None = None) -> str:
    """Which implementation `walsh_hadamard` chooses for a width, and why not the others."""
    _expect_power_of_two("hadamard.explain", N)
    return dispatch.explain(HADAMARD, {"N": N}, platform)


def _expect_power_of_two(name: str, width: int) -> None:
    if width < 1 or width & (width - 1):
        raise ValueError(f"{name}: the last axis has {width} values; it must be a power of two")
