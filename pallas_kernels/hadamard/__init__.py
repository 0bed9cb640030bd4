"""The Walsh-Hadamard transform, the rotation of the turbo formats."""

from pallas_kernels.hadamard.api import explain, walsh_hadamard

__all__ = ["explain", "walsh_hadamard"]
