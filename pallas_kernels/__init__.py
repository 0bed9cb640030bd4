"""Kernels of language models with a choice of implementations; knows JAX and nothing of models."""

from pallas_kernels.explanation import explain
from pallas_kernels.override import using

__all__ = ["explain", "using"]
