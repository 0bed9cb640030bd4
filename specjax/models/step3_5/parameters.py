"""The parameter tree of the family: its shapes, and random values for it."""

from __future__ import annotations

from dataclasses import replace

import jax
from jaxtyping import Array

from specjax.models.parts.room import Room
from specjax.models.parts.shapes import init_head, init_trunk, shapes_of_kinds
from specjax.models.protocol import Params
from specjax.models.step3_5.config import Step35Config
from specjax.models.step3_5.drafter import mtp_block
from specjax.models.step3_5.modules import rotary
from specjax.models.step3_5.target import Step35Target


def init_params(config: Step35Config, key: Array) -> Params:
    """Random float32 parameters: {"target": ..., "mtp": {"heads_0": ..., ...}}, the latter only if there are heads."""
    trunk_key, *head_keys = jax.random.split(key, 1 + config.mtp_layers)
    target = Step35Target(config)
    params = {"target": init_trunk(target, trunk_key)}
    shared = rotary(config, params["target"].get("rope_factors"))

    def head(index: int, key: Array) -> Params:
        cache = target.init_state(config.heads[index].layer, Room(1, 1))
        return init_head(mtp_block(config, index), cache, key, shared)

    if config.heads:
        params["mtp"] = {f"heads_{index}": head(index, key) for index, key in enumerate(head_keys)}
    return params


def parameter_shapes(config: Step35Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array, see `shapes_of_kinds`."""
    return shapes_of_kinds(lambda kinds, key: init_params(replace(config, layers=kinds), key), config.layer_kinds)
