"""Step-3.5 and Step-3.7 as files have them."""

from __future__ import annotations

from checkpoints.family import Family
from specjax.models.parts.value_checks import ROPE_DIVISORS
from specjax.models.step3_5.config import Step35Config
from specjax.models.step3_5.gguf import GGUF
from specjax.models.step3_5.hf import HF

FAMILY = Family(
    config_type=Step35Config,
    role="target",
    gguf=GGUF,
    hf=HF,
    rope=lambda config: (config.full.rope_theta, config.full.rope_width),
    value_checks=(ROPE_DIVISORS,),
)
