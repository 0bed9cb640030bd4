"""Initial parameters for training from nothing."""

from __future__ import annotations

import math
from functools import partial

import jax
from jax.tree_util import DictKey
from jaxtyping import Array, PRNGKeyArray

from specjax.models.qwen3_5 import Qwen35Config, init_params

RESIDUAL_WRITERS = {DictKey("o_proj"), DictKey("out_proj"), DictKey("down_proj")}
"""Projections whose output is added to the residual stream."""


@partial(jax.jit, static_argnums=0)
def initial_parameters(config: Qwen35Config, key: PRNGKeyArray) -> dict:
    """The model's random parameters, with what writes to the residual stream scaled by 1 / sqrt(2 L).

    So the stream's variance at the last layer does not grow with L (Radford et al., "Language Models are Unsupervised
    Multitask Learners", 2019, section 2.3).
    """
    scale = 1 / math.sqrt(2 * config.num_layers)

    def scaled(path: tuple, value: Array) -> Array:
        return value * scale if RESIDUAL_WRITERS.intersection(path) else value

    return jax.tree_util.tree_map_with_path(scaled, init_params(config, key))
