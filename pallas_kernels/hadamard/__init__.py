"""The Walsh-Hadamard transform."""

from pallas_kernels.hadamard.api import explain, walsh_hadamard

__all__ = ["explain", "walsh_hadamard"]
