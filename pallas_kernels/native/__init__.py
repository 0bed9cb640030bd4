"""Kernels in C++ for CPUs: whether there are any here, and how to call them."""

from pallas_kernels.native.forms import differentiable
from pallas_kernels.native.library import available, instruction_set, instruction_sets, reason, target

__all__ = ["available", "differentiable", "instruction_set", "instruction_sets", "reason", "target"]
