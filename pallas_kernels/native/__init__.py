"""Kernels in C++ for CPUs: whether there are any here, and how to call them."""

from pallas_kernels.native.forms import on_cpu
from pallas_kernels.native.library import available, instruction_set, instruction_sets, reason, target

__all__ = ["available", "instruction_set", "instruction_sets", "on_cpu", "reason", "target"]
