"""The shapes of the parameter tree."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from specjax.models.dense.config import DenseConfig
from specjax.models.dense.modules import Trunk
from specjax.models.dense.target import DenseTarget
from specjax.models.protocol import Params


def parameter_shapes(config: DenseConfig) -> Params:
    """{"target": ...} with a `jax.ShapeDtypeStruct` in place of each array; costs no memory.

    All layers are alike, so only one is traced.
    """
    sample = replace(config, num_layers=1)

    def init() -> Params:
        one = jnp.ones((1,), jnp.int32)
        layers = DenseTarget(sample).init_layers(1, 1, rows=1, chunk=1, rollback="replay")

        def whole(trunk: Trunk) -> jax.Array:
            return trunk.logits(trunk(one[None], one - 1, one, layers, rollback=False)[0])

        return Trunk(sample).init(jax.random.key(0), method=whole)["params"]

    shapes = jax.eval_shape(init)
    layer = shapes.pop("layers_0")
    return {"target": {**shapes, **{f"layers_{index}": layer for index in range(config.num_layers)}}}
