"""Gemma 4: sliding and full attention, dense or with experts beside the MLP, with or without per-layer embeddings."""

from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    MoEConfig,
    interleaved_layer_types,
)
from specjax.models.gemma4.parameters import init_params, parameter_shapes
from specjax.models.gemma4.target import Gemma4Target

__all__ = [
    "FULL_ATTENTION",
    "SLIDING_ATTENTION",
    "AttentionConfig",
    "Gemma4Config",
    "Gemma4Target",
    "MoEConfig",
    "init_params",
    "interleaved_layer_types",
    "parameter_shapes",
]
