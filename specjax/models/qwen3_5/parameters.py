"""The parameter tree of the family: its shapes, and random values for it."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Array

from specjax.models.parts.shapes import init_model, shapes_of_kinds
from specjax.models.protocol import Params
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.drafter import Qwen35MTP
from specjax.models.qwen3_5.target import Qwen35Target


def init_params(config: Qwen35Config, key: Array) -> Params:
    """Random float32 parameters: {"target": ..., "mtp": ...}, the latter only if the config has an MTP block."""
    return init_model(Qwen35Target(config), Qwen35MTP(config) if config.mtp_layers else None, key)


def parameter_shapes(config: Qwen35Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array, see `shapes_of_kinds`."""
    return shapes_of_kinds(lambda kinds, key: init_params(replace(config, layer_types=kinds), key), config.layer_kinds)
