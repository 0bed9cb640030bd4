"""The parameter tree: its shapes, and random values for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.modules import Eagle3, make_caches
from specjax.models.parts.room import Room
from specjax.models.protocol import Params


def init_params(config: Eagle3Config, key: Array) -> Params:
    """Random float32 parameters, {"eagle3": ...}; the drafter's tokens are the first ones of the target."""
    token = jnp.zeros((1, 1), jnp.int32)
    features = jnp.zeros((1, 1, config.num_features * config.target_width), jnp.float32)
    caches = make_caches(config, Room(1, 1))
    return {"eagle3": Eagle3(config).init(key, token, features, caches, method="whole")["params"]}


def parameter_shapes(config: Eagle3Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array; costs no memory."""
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
