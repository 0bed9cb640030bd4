"""The parameter tree of the family: its shapes, and random values for it."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Array

from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.drafter import Glm4MoeMTP
from specjax.models.glm4_moe.target import Glm4MoeTarget
from specjax.models.parts.shapes import init_model, shapes_of_kinds
from specjax.models.protocol import Params


def init_params(config: Glm4MoeConfig, key: Array) -> Params:
    """Random float32 parameters: {"target": ..., "mtp": ...}, the latter only if the config has an MTP block."""
    return init_model(Glm4MoeTarget(config), Glm4MoeMTP(config) if config.mtp_layers else None, key)


def parameter_shapes(config: Glm4MoeConfig) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array, see `shapes_of_kinds`."""

    def init(kinds: tuple[bool, ...], key: Array) -> Params:
        return init_params(replace(config, num_layers=len(kinds), dense_layers=kinds.count(False)), key)

    return shapes_of_kinds(init, config.layer_kinds)
