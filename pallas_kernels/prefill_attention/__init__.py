"""Attention of many query rows over a cache of keys and values."""

from pallas_kernels.prefill_attention.api import attend, explain

__all__ = ["attend", "explain"]
