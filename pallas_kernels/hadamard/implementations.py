"""The implementations of the Walsh-Hadamard transform, in order of preference."""

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.hadamard import reference, xla_matmul

IMPLEMENTATIONS = (
    Implementation("xla_matmul", xla_matmul.transform, ANYWHERE),
    Implementation("reference", reference.transform),
)
