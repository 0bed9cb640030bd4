"""Step-3.5: MoE with a sigmoid router, sliding and full attention of different widths, and chained MTP heads."""

from specjax.models.parts.moe import MoEConfig
from specjax.models.step3_5.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    HeadConfig,
    LayerConfig,
    Llama3Rope,
    Step35Config,
)
from specjax.models.step3_5.drafter import Step35MTP
from specjax.models.step3_5.family import FAMILY
from specjax.models.step3_5.parameters import init_params, parameter_shapes
from specjax.models.step3_5.target import Step35Target

__all__ = [
    "FAMILY",
    "FULL_ATTENTION",
    "SLIDING_ATTENTION",
    "AttentionConfig",
    "HeadConfig",
    "LayerConfig",
    "Llama3Rope",
    "MoEConfig",
    "Step35Config",
    "Step35MTP",
    "Step35Target",
    "init_params",
    "parameter_shapes",
]
