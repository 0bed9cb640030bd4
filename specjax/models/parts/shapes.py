"""Parameters that a family has once its modules are written: random ones, and their shapes at no cost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from specjax.models.parts.head import MTPBlock
from specjax.models.parts.mtp import RepeatedHead
from specjax.models.parts.trunk import Call, Trunk, TrunkTarget
from specjax.models.protocol import Params
from specjax.state import KVTypes


def init_trunk(target: TrunkTarget, key: Array) -> Params:
    """Random float32 parameters of a target's trunk."""
    one = jnp.ones((1,), jnp.int32)
    layers = target.init_layers(1, 1, rows=1, chunk=1, rollback="replay", kv_types=KVTypes())

    def whole(trunk: Trunk) -> Array:
        hidden, _, _ = trunk(one[None] - 1, one - 1, one, layers)
        return trunk.logits(hidden)

    return target.trunk.init(key, method=whole)["params"]


def init_head(block: MTPBlock, cache: Any, key: Array, shared: Any = None) -> Params:
    """Random float32 parameters of a head; `cache` and `shared` are what its layer takes."""
    token, hidden = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1, block.config.width), jnp.float32)
    call = Call(token, token == 0, shared=shared)
    return block.init(key, token, hidden, call, cache, method="whole")["params"]


def init_model(target: TrunkTarget, head: RepeatedHead | None, key: Array) -> Params:
    """Random float32 parameters: {"target": ..., "mtp": ...}, the latter only if there is a head."""
    trunk_key, head_key = jax.random.split(key)
    params = {"target": init_trunk(target, trunk_key)}
    if head is not None:
        params["mtp"] = init_head(head.block, head.init_cache(1, 1, KVTypes()), head_key)
    return params


def shapes_of_kinds(init: Callable[[tuple[Any, ...], Array], Params], kinds: Sequence[Hashable]) -> Params:
    """The parameter tree of a model with a `jax.ShapeDtypeStruct` in place of each array; costs no memory.

    Layers of one kind are alike, so only one of each kind is traced: the shapes of a model of 64 layers take
    milliseconds instead of seconds.

    Args:
        init: (kinds of the layers, key) -> the parameters of such a model; those of layer i are `layers_i` of "target".
        kinds: of all layers.
    """
    distinct = tuple(dict.fromkeys(kinds))
    shapes = jax.eval_shape(lambda: init(distinct, jax.random.key(0)))
    trunk = dict(shapes["target"])
    layer_of = {kind: trunk.pop(f"layers_{index}") for index, kind in enumerate(distinct)}
    return {**shapes, "target": {**trunk, **{f"layers_{index}": layer_of[kind] for index, kind in enumerate(kinds)}}}
