"""The Walsh-Hadamard transform."""

from pallas_kernels.hadamard.api import walsh_hadamard

__all__ = ["walsh_hadamard"]
