"""Linen modules as functions of their parameters."""

from __future__ import annotations

from typing import Any

import flax.linen as nn


def apply(module: nn.Module, params: Any, *args: Any, method: str | None = None, **options: Any) -> Any:
    """What a method (default: `__call__`) of the module returns with these parameters. Nothing is mutable."""
    return module.apply({"params": params}, *args, method=method, **options)
