"""The parameter tree: its shapes, and random values for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.models.drafters.dflash.config import DFlashConfig
from specjax.models.drafters.dflash.modules import DFlash, make_caches
from specjax.models.parts.room import Room
from specjax.models.protocol import Params


def init_params(config: DFlashConfig, key: Array) -> Params:
    """Random float32 parameters, {"dflash": ...}; the drafter's tokens are the first ones of the target."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    features = jnp.zeros((1, 1, config.num_features * config.width), jnp.float32)
    caches = make_caches(config, Room(1, 1 + config.block_size))
    return {"dflash": DFlash(config).init(key, tokens, features, caches, method="whole")["params"]}


def parameter_shapes(config: DFlashConfig) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array; costs no memory."""
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
