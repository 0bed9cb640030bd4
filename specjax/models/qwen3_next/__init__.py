"""Qwen3-Next: Qwen3.5's sparse architecture in files of another form, with value heads in another order."""

from specjax.models.qwen3_next.config import Qwen3NextConfig
from specjax.models.qwen3_next.family import FAMILY

__all__ = ["FAMILY", "Qwen3NextConfig"]
