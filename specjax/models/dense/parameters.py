"""The shapes of the parameter tree."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Array

from specjax.models.dense.config import DenseConfig
from specjax.models.dense.target import DenseTarget
from specjax.models.parts.shapes import init_trunk, shapes_of_kinds
from specjax.models.protocol import Params


def parameter_shapes(config: DenseConfig) -> Params:
    """{"target": ...} with a `jax.ShapeDtypeStruct` in place of each array, see `shapes_of_kinds`."""

    def init(kinds: tuple[None, ...], key: Array) -> Params:
        return {"target": init_trunk(DenseTarget(replace(config, num_layers=len(kinds))), key)}

    return shapes_of_kinds(init, config.layer_kinds)
