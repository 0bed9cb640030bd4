"""What a softmax over the last axis sums up to, without making it."""

from pallas_kernels.softmax_totals.api import Totals, explain, softmax_totals

__all__ = ["Totals", "explain", "softmax_totals"]
