"""Qwen3.5 and Qwen3.6 as files have them."""

from __future__ import annotations

from checkpoints.family import Family
from specjax.models.parts.value_checks import DECAY_RATES
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.gguf import GGUF
from specjax.models.qwen3_5.hf import HF

FAMILY = Family(config_type=Qwen35Config, role="target", gguf=GGUF, hf=HF, value_checks=(DECAY_RATES,))
