"""Step-3.5 and Step-3.7 in files and in memory."""

from __future__ import annotations

from specjax.models.parts.family import ModelFamily
from specjax.models.parts.value_checks import ROPE_DIVISORS
from specjax.models.step3_5.config import Step35Config
from specjax.models.step3_5.drafter import Step35MTP
from specjax.models.step3_5.gguf import GGUF
from specjax.models.step3_5.hf import HF
from specjax.models.step3_5.target import Step35Target

FAMILY = ModelFamily(
    config_type=Step35Config,
    role="target",
    gguf=GGUF,
    hf=HF,
    rope=lambda config: (config.full.rope_theta, config.full.rope_width),
    value_checks=(ROPE_DIVISORS,),
    target=Step35Target,
    head=Step35MTP,
)
