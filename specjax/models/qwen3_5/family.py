"""Qwen3.5 and Qwen3.6 in files and in memory."""

from __future__ import annotations

from specjax.models.parts.family import ModelFamily
from specjax.models.parts.value_checks import DECAY_RATES
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.drafter import Qwen35MTP
from specjax.models.qwen3_5.gguf import GGUF
from specjax.models.qwen3_5.hf import HF
from specjax.models.qwen3_5.target import Qwen35Target

FAMILY = ModelFamily(
    config_type=Qwen35Config,
    role="target",
    gguf=GGUF,
    hf=HF,
    value_checks=(DECAY_RATES,),
    target=Qwen35Target,
    head=Qwen35MTP,
)
