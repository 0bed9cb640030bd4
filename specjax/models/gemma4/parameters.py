"""The parameter trees of the family: their shapes, and random values for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
    return {"target": _init(partial(_init_ends, config), config.layer_kinds, config.width, key)}


def parameter_shapes(config: Gemma4Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array; costs no memory.

    Layers with equal configs are alike and traced once: the shapes of a model of 60 layers take milliseconds.
    """
    return {"target": _shapes(partial(_init_ends, config), config.layer_kinds, config.width)}


def init_assistant(config: Gemma4AssistantConfig, key: Array) -> Params:
    """Random parameters of an assistant: {"mtp": ...}, float32 but for the int32 order of tokens of a centroid head."""
    return {"mtp": _init(partial(_init_assistant_ends, config), config.layer_kinds, config.width, key)}


def assistant_shapes(config: Gemma4AssistantConfig) -> Params:
    """An assistant's parameter tree with a `jax.ShapeDtypeStruct` in place of each array."""
    return {"mtp": _shapes(partial(_init_assistant_ends, config), config.layer_kinds, config.width)}


def _init(ends: Callable[[Array], Params], kinds: Sequence[LayerConfig], width: int, key: Array) -> Params:
    """Random parameters of layers, and of what `ends` makes besides."""
    ends_key, *keys = jax.random.split(key, 1 + len(kinds))
    layers = {f"layers_{index}": _init_layer(kind, width, keys[index]) for index, kind in enumerate(kinds)}
    return {**ends(ends_key), **layers}


def _shapes(ends: Callable[[Array], Params], kinds: Sequence[LayerConfig], width: int) -> Params:
    """The shapes of what `_init` makes."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    layer_of = {kind: jax.eval_shape(partial(_init_layer, kind, width), key) for kind in set(kinds)}
    return {**jax.eval_shape(ends, key), **{f"layers_{index}": layer_of[kind] for index, kind in enumerate(kinds)}}


def _init_layer(config: LayerConfig, width: int, key: Array) -> Params:
    """Random parameters of one layer of a residual stream of `width`."""
    row, index = jnp.zeros((1, 1, width), jnp.float32), jnp.zeros((1, 1), jnp.int32)
    per_layer = jnp.zeros((1, 1, config.per_layer_width), jnp.float32) if config.per_layer_width else None
    cache = KVCache.zeros(1, 1, config.attention.num_kv_heads, config.attention.head_width, KVTypes())
    return Layer(config).init(key, row, per_layer, index, index, index == 0, cache)["params"]


def _init_ends(config: Gemma4Config, key: Array) -> Params:
    """Parameters of the trunk without its layers."""
    return Gemma4Trunk(config).init(key, jnp.zeros((1, 1), jnp.int32), method="ends")["params"]


def _init_assistant_ends(config: Gemma4AssistantConfig, key: Array) -> Params:
    """Parameters of an assistant without its layers."""
    pair = jnp.zeros((1, 1, 2 * config.target_width), jnp.float32)
    return AssistantBlock(config).init(key, pair, method="ends")["params"]
