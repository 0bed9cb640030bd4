"""The orthonormal Walsh-Hadamard transform of the last axis, in natural order. It is its own inverse."""

from jax import Array
from jaxtyping import Float

from pallas_kernels import dispatch
from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.hadamard import reference, xla_matmul

IMPLEMENTATIONS = (
    Implementation("xla_matmul", xla_matmul.transform, ANYWHERE),
    Implementation("reference", reference.transform),
)


def walsh_hadamard(x: Float[Array, "... N"], *, impl: str | None = None) -> Float[Array, "... N"]:
    """H x / sqrt(N) in float32, H the Sylvester matrix: entry (i, j) is -1 to the number of bits that i and j share.

    Raises:
        ValueError: N is no power of two, or an implementation that does not fit.
    """
    width = x.shape[-1]
    if width < 1 or width & (width - 1):
        raise ValueError(f"walsh_hadamard: the last axis has {width} values; it must be a power of two")
    return dispatch.choose("walsh_hadamard", IMPLEMENTATIONS, impl, {"N": width}).run(x)
