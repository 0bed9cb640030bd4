"""Qwen3 and Llama as files have them."""

from __future__ import annotations

from checkpoints.family import Family
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.gguf import GGUF
from specjax.models.dense.hf import HF
from specjax.models.parts.value_checks import ROPE_DIVISORS

FAMILY = Family(
    config_type=DenseConfig,
    role="target",
    gguf=GGUF,
    hf=HF,
    rope=lambda config: (config.rope_theta, config.head_width),
    value_checks=(ROPE_DIVISORS,),
)
