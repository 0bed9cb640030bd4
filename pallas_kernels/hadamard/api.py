"""The orthonormal Walsh-Hadamard transform of the last axis, in natural order. It is its own inverse."""

from jax import Array
from jaxtyping import Float

from pallas_kernels import dispatch
from pallas_kernels.hadamard.implementations import IMPLEMENTATIONS


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
        ValueError: N is no power of two, factors that are not [N], or an implementation that does not fit.
    """
    width = x.shape[-1]
    if width < 1 or width & (width - 1):
        raise ValueError(f"walsh_hadamard: the last axis has {width} values; it must be a power of two")
    for name, factors in {"before": before, "after": after}.items():
        if factors is not None and factors.shape != (width,):
            raise ValueError(f"walsh_hadamard: {name} has shape {factors.shape}; [N] is {(width,)}")
    return dispatch.choose("hadamard", IMPLEMENTATIONS, impl, {"N": width}).run(x, before, after)


def explain(*, N: int, platform: str | None = None) -> str:
    """Which implementation `walsh_hadamard` chooses for a width, and why not the others."""
    return dispatch.explain("hadamard", IMPLEMENTATIONS, {"N": N}, platform)
