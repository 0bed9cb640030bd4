"""Linen modules as functions of their parameters."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax

from specjax.mesh.shards import mesh_of


def apply(module: nn.Module, params: Any, *args: Any, method: str | None = None, **options: Any) -> Any:
    """What a method (default: `__call__`) of the module returns with these parameters. Nothing is mutable.

    Parameters in host memory are read over where the program comes to this call, each time it does.

    Raises:
        ValueError: the parameters lie on a mesh, but this does not run on shards, see `specjax.mesh.shards.on_shards`.
            Parts of heads lie there in an order of their own, so that results would be wrong.
    """
    if mesh_of(params) is not None:
        raise ValueError("the model is loaded onto a mesh, which this program does not run on; load it onto one device")
    return module.apply({"params": jax.tree.map(in_device_memory, params)}, *args, method=method, **options)


def in_device_memory(x: jax.Array) -> jax.Array:
    """The array where a program can compute with it."""
    if jax.typeof(x).memory_space == jax.memory.Space.Host:
        return jax.device_put(x, jax.memory.Space.Device)
    return x
