"""Gemma 4: sliding and full attention, dense or with experts beside the MLP, with or without per-layer embeddings."""

from specjax.models.gemma4.assistant_config import CentroidHead, Gemma4AssistantConfig, check_fit
from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    MoEConfig,
    interleaved_layer_types,
)
from specjax.models.gemma4.drafter import Gemma4Assistant
from specjax.models.gemma4.family import ASSISTANT, FAMILY
from specjax.models.gemma4.parameters import assistant_shapes, init_assistant, init_params, parameter_shapes
from specjax.models.gemma4.target import Gemma4Target

__all__ = [
    "ASSISTANT",
    "FAMILY",
    "FULL_ATTENTION",
    "SLIDING_ATTENTION",
    "AttentionConfig",
    "CentroidHead",
    "Gemma4Assistant",
    "Gemma4AssistantConfig",
    "Gemma4Config",
    "Gemma4Target",
    "MoEConfig",
    "assistant_shapes",
    "check_fit",
    "init_assistant",
    "init_params",
    "interleaved_layer_types",
    "parameter_shapes",
]
