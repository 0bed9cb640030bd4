"""Qwen3-Next in files and in memory."""

from __future__ import annotations

from specjax.models.parts.family import ModelFamily
from specjax.models.parts.value_checks import DECAY_RATES
from specjax.models.qwen3_5.drafter import Qwen35MTP
from specjax.models.qwen3_5.target import Qwen35Target
from specjax.models.qwen3_next.config import Qwen3NextConfig
from specjax.models.qwen3_next.gguf import GGUF
from specjax.models.qwen3_next.hf import HF

FAMILY = ModelFamily(
    config_type=Qwen3NextConfig,
    role="target",
    gguf=GGUF,
    hf=HF,
    value_checks=(DECAY_RATES,),
    target=Qwen35Target,
    head=Qwen35MTP,
)
