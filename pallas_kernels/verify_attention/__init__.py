"""Attention of some query rows over a cache of keys and values."""

from pallas_kernels.verify_attention.api import attend, explain
from pallas_kernels.verify_attention.arguments import MOST_ROWS
from pallas_kernels.verify_attention.visibility import visible_slots
from pallas_kernels.verify_attention.xla_floats import attend_masked

__all__ = ["MOST_ROWS", "attend", "attend_masked", "explain", "visible_slots"]
