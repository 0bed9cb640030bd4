"""The parameter tree of the family: its shapes, and random values for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.models.protocol import Params
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.modules import MTPBlock, Trunk
from specjax.models.qwen3_5.target import Qwen35Target
from specjax.state import KVCache, KVTypes


def init_params(config: Qwen35Config, key: Array) -> Params:
    """Random float32 parameters: {"target": ..., "mtp": ...}, the latter only if the config has an MTP block."""
    trunk_key, mtp_key = jax.random.split(key)
    one = jnp.ones((1,), jnp.int32)
    tokens = jnp.zeros((1, 1), jnp.int32)
    layers = Qwen35Target(config).init_layers(1, 1, rows=1, chunk=1, rollback="replay")

    def whole_trunk(trunk: Trunk) -> Array:
        hidden, _, _ = trunk(tokens, one - 1, one, layers, rollback=False)
        return trunk.logits(hidden)

    params = {"target": Trunk(config).init(trunk_key, method=whole_trunk)["params"]}
    if config.mtp_layers:
        cache = KVCache.zeros(1, 1, config.num_kv_heads, config.head_width, KVTypes())
        row = jnp.zeros((1, 1, config.width), jnp.float32)

        def whole_block(block: MTPBlock) -> Array:
            embedded = block.embed_tokens(tokens) if config.mtp_own_embedding else row
            hidden, _ = block(embedded, row, tokens, tokens == 0, cache)
            hidden = block.final_norm(hidden) if config.mtp_own_norm else hidden
            return block.logits(hidden) if config.mtp_own_output else hidden

        params["mtp"] = MTPBlock(config).init(mtp_key, method=whole_block)["params"]
    return params


def parameter_shapes(config: Qwen35Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array; costs no memory.

    Layers of one kind are alike, so only the first of each kind is traced: the shapes of a model of 64 layers take
    milliseconds instead of seconds.
    """
    kinds = tuple(dict.fromkeys(config.layer_types))
    sample = replace(config, layer_types=kinds)
    shapes = jax.eval_shape(partial(init_params, sample), jax.eval_shape(lambda: jax.random.key(0)))
    layer_of = {kind: shapes["target"].pop(f"layers_{index}") for index, kind in enumerate(kinds)}
    layers = {f"layers_{index}": layer_of[kind] for index, kind in enumerate(config.layer_types)}
    return {**shapes, "target": {**shapes["target"], **layers}}
