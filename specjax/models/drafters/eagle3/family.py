"""EAGLE-3 drafters in files and in memory."""

from __future__ import annotations

from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.drafter import from_file
from specjax.models.drafters.eagle3.gguf import GGUF
from specjax.models.drafters.eagle3.hf import HF
from specjax.models.parts.family import ModelFamily
from specjax.models.parts.value_checks import ROPE_DIVISORS

FAMILY = ModelFamily(
    config_type=Eagle3Config,
    role="drafter",
    gguf=GGUF,
    hf=HF,
    rope=lambda config: (config.rope_theta, config.head_width),
    rope_divisors="eagle3.rope_factors",
    value_checks=(ROPE_DIVISORS,),
    file_drafter=from_file,
)
