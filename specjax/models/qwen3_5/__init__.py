"""Qwen3.5 / Qwen3.6: gated delta nets with full attention in between, dense or MoE, and one MTP block."""

from specjax.models.qwen3_5.config import (
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MoEConfig,
    Qwen35Config,
    hybrid_layer_types,
)
from specjax.models.qwen3_5.drafter import Qwen35MTP
from specjax.models.qwen3_5.family import FAMILY
from specjax.models.qwen3_5.parameters import init_params, parameter_shapes
from specjax.models.qwen3_5.target import Qwen35Target

__all__ = [
    "FAMILY",
    "FULL_ATTENTION",
    "LINEAR_ATTENTION",
    "MoEConfig",
    "Qwen35Config",
    "Qwen35MTP",
    "Qwen35Target",
    "hybrid_layer_types",
    "init_params",
    "parameter_shapes",
]
