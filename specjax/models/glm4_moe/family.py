"""GLM-4.5 and its successors in files and in memory."""

from __future__ import annotations

from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.drafter import Glm4MoeMTP
from specjax.models.glm4_moe.gguf import GGUF
from specjax.models.glm4_moe.hf import HF
from specjax.models.glm4_moe.target import Glm4MoeTarget
from specjax.models.parts.family import ModelFamily

FAMILY = ModelFamily(
    config_type=Glm4MoeConfig,
    role="target",
    gguf=GGUF,
    hf=HF,
    target=Glm4MoeTarget,
    head=Glm4MoeMTP,
)
