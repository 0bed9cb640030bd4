"""Attention of query rows, few or many, over a cache of keys and values."""

from pallas_kernels.cache_attention.api import attend, explain
from pallas_kernels.cache_attention.visibility import visible_slots
from pallas_kernels.cache_attention.xla_floats import attend_masked

__all__ = ["attend", "attend_masked", "explain", "visible_slots"]
