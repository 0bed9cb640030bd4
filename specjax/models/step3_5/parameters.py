"""The parameter tree of the family: its shapes, and random values for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.models.protocol import Params
from specjax.models.step3_5.config import Step35Config
from specjax.models.step3_5.modules import Frequencies, MTPHead, Trunk
from specjax.models.step3_5.target import Step35Target, init_cache
from specjax.state import KVTypes


def init_params(config: Step35Config, key: Array) -> Params:
    """Random float32 parameters: {"target": ..., "mtp": {"heads_0": ..., ...}}, the latter only if there are heads."""
    trunk_key, *head_keys = jax.random.split(key, 1 + config.mtp_layers)
    one = jnp.ones((1,), jnp.int32)
    tokens = jnp.zeros((1, 1), jnp.int32)
    layers = Step35Target(config).init_layers(1, 1, rows=1, chunk=1, rollback="replay")

    def whole_trunk(trunk: Trunk) -> tuple[Array, Frequencies]:
        hidden, _, _ = trunk(tokens, one - 1, one, layers)
        return trunk.logits(hidden), trunk.frequencies()

    (_, frequencies), variables = Trunk(config).init_with_output(trunk_key, method=whole_trunk)
    params = {"target": variables["params"]}
    row = jnp.zeros((1, 1, config.width), jnp.float32)

    def whole_head(head: MTPHead) -> Array:
        cache = init_cache(config, head.head.layer, 1, 1, longest_call=1, kv_types=KVTypes())
        embedded = head.embed_tokens(tokens) if head.head.own_embedding else row
        hidden, _ = head(embedded, row, tokens, tokens == 0, cache, frequencies)
        hidden = head.final_norm(hidden) if head.head.own_norm else hidden
        return head.project(hidden) if head.head.own_output else hidden

    if config.heads:
        params["mtp"] = {
            f"heads_{index}": MTPHead(config, head).init(head_key, method=whole_head)["params"]
            for index, (head, head_key) in enumerate(zip(config.heads, head_keys, strict=True))
        }
    return params


def parameter_shapes(config: Step35Config) -> Params:
    """The parameter tree with a `jax.ShapeDtypeStruct` in place of each array; costs no memory.

    Layers that are configured alike are alike, so only one of each sort is traced.
    """
    kinds = tuple(dict.fromkeys(config.layers))
    sample = replace(config, layers=kinds)
    shapes = jax.eval_shape(partial(init_params, sample), jax.eval_shape(lambda: jax.random.key(0)))
    layer_of = {kind: shapes["target"].pop(f"layers_{index}") for index, kind in enumerate(kinds)}
    layers = {f"layers_{index}": layer_of[kind] for index, kind in enumerate(config.layers)}
    return {**shapes, "target": {**shapes["target"], **layers}}
