"""Timing implementations at the sizes of a model's calls, and comparing them with the law; see `measure`."""

from pallas_kernels.measuring.measure import Progress, measure, worth_measuring

__all__ = ["Progress", "measure", "worth_measuring"]
