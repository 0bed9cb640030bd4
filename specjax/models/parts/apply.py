"""Linen modules as functions of their parameters."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax


def apply(module: nn.Module, params: Any, *args: Any, method: str | None = None, **options: Any) -> Any:
    """What a method (default: `__call__`) of the module returns with these parameters. Nothing is mutable.

    Parameters in host memory are read over where the program comes to this call, each time it does.
    """
    return module.apply({"params": jax.tree.map(in_device_memory, params)}, *args, method=method, **options)


def in_device_memory(x: jax.Array) -> jax.Array:
    """The array where a program can compute with it."""
    if jax.typeof(x).memory_space == jax.memory.Space.Host:
        return jax.device_put(x, jax.memory.Space.Device)
    return x
