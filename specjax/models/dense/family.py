"""Qwen3 and Llama in files and in memory."""

from __future__ import annotations

from specjax.models.dense.config import DenseConfig
from specjax.models.dense.gguf import GGUF
from specjax.models.dense.hf import HF
from specjax.models.dense.target import DenseTarget
from specjax.models.parts.family import ModelFamily
from specjax.models.parts.value_checks import ROPE_DIVISORS

FAMILY = ModelFamily(
    config_type=DenseConfig,
    role="target",
    gguf=GGUF,
    hf=HF,
    rope=lambda config: (config.rope_theta, config.head_width),
    value_checks=(ROPE_DIVISORS,),
    target=DenseTarget,
)
