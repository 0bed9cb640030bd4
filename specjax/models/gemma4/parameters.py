"""The parameter trees of the family: their shapes, and random values for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.models.gemma4.assistant_config import Gemma4AssistantConfig
from specjax.models.gemma4.config import Gemma4Config, LayerConfig
from specjax.models.gemma4.drafter import AssistantBlock
from specjax.models.gemma4.modules import Gemma4Trunk, Layer
from specjax.models.protocol import Params
from specjax.state import KVCache, KVTypes


def init_params(config: Gemma4Config, key: Array) -> Params:
    """Random float32 parameters: {"target": ...}."""
    ends_key, *layer_keys = jax.random.split(key, 1 + config.num_layers)
    layers = {
        f"layers_{index}": init_layer(config.layer(index), config.width, layer_key)
        for index, layer_key in enumerate(layer_keys)
    }
    return {"target": {**_init_ends(config, ends_key), **layers}}


def parameter_shapes(config: Gemma4Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array; costs no memory.

    Layers with equal configs are alike and traced once: the shapes of a model of 60 layers take milliseconds.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    layers = layer_shapes([config.layer(index) for index in range(config.num_layers)], config.width)
    return {"target": {**jax.eval_shape(partial(_init_ends, config), key), **layers}}


def init_assistant(config: Gemma4AssistantConfig, key: Array) -> Params:
    """Random parameters of an assistant: {"mtp": ...}, float32 but for the int32 order of tokens of a centroid head."""
    ends_key, *layer_keys = jax.random.split(key, 1 + len(config.layer_types))
    layers = {
        f"layers_{index}": init_layer(config.layer(index), config.width, layer_key)
        for index, layer_key in enumerate(layer_keys)
    }
    return {"mtp": {**_init_assistant_ends(config, ends_key), **layers}}


def assistant_shapes(config: Gemma4AssistantConfig) -> Params:
    """An assistant's parameter tree with a `jax.ShapeDtypeStruct` in place of each array."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    layers = layer_shapes([config.layer(index) for index in range(len(config.layer_types))], config.width)
    return {"mtp": {**jax.eval_shape(partial(_init_assistant_ends, config), key), **layers}}


def init_layer(config: LayerConfig, width: int, key: Array) -> Params:
    """Random parameters of one layer of a residual stream of `width`."""
    row, index = jnp.zeros((1, 1, width), jnp.float32), jnp.zeros((1, 1), jnp.int32)
    per_layer = jnp.zeros((1, 1, config.per_layer_width), jnp.float32) if config.per_layer_width else None
    cache = KVCache.zeros(1, 1, config.attention.num_kv_heads, config.attention.head_width, KVTypes())
    return Layer(config).init(key, row, per_layer, index, index, index == 0, cache)["params"]


def layer_shapes(configs: list[LayerConfig], width: int) -> dict[str, Any]:
    """{"layers_0": ..., ...}: the shapes of the layers' parameters."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = {config: jax.eval_shape(partial(init_layer, config, width), key) for config in set(configs)}
    return {f"layers_{index}": shapes[config] for index, config in enumerate(configs)}


def _init_ends(config: Gemma4Config, key: Array) -> Params:
    """Parameters of the trunk without its layers."""
    return Gemma4Trunk(config).init(key, jnp.zeros((1, 1), jnp.int32), method="ends")["params"]


def _init_assistant_ends(config: Gemma4AssistantConfig, key: Array) -> Params:
    """Parameters of an assistant without its layers."""
    pair = jnp.zeros((1, 1, 2 * config.target_width), jnp.float32)
    return AssistantBlock(config).init(key, pair, method="ends")["params"]
