"""Plain decoder-only transformers: Qwen3 and Llama. They have no head of their own, and draft for others."""

from checkpoints.mapping.rope_formula import Llama3Rope
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.family import FAMILY
from specjax.models.dense.parameters import parameter_shapes
from specjax.models.dense.target import DenseTarget

__all__ = ["FAMILY", "DenseConfig", "DenseTarget", "Llama3Rope", "parameter_shapes"]
