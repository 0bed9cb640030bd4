"""Kernels of language models with a choice of implementations; knows JAX and nothing of models."""

from pallas_kernels.operations import explain

__all__ = ["explain"]
