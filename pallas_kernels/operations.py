"""The operations of the package by name, and what is known of each. Modules are imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pallas_kernels.dispatch import Implementation

FOLDERS = (
    *("causal_conv1d", "gated_delta", "hadamard", "prefill_attention", "quant_matmul", "rms_norm"),
    "verify_attention",
)
"""Each has an api.py with `IMPLEMENTATIONS`, by name where there are several operations, and `explain`."""


def tables() -> dict[str, tuple[Implementation, ...]]:
    """The implementations of every operation, by its full name such as "hadamard" or "gated_delta.verify"."""
    return {operation: table for folder in FOLDERS for operation, table in _tables(folder).items()}


def explain(operation: str, *args: Any, **kwargs: Any) -> str:
    """Which implementation an operation would choose, and why not the others.

    Args:
        operation: full name, such as "hadamard" or "gated_delta.verify".
        args, kwargs: what the `explain` of the operation's own module takes after the name: sizes, or the arguments of
            a call; `platform` asks for another one than that of the default device.

    Raises:
        ValueError: the operation is not known.
    """
    folder, _, name = operation.partition(".")
    if folder not in FOLDERS or operation not in _tables(folder):
        raise ValueError(f"explain: operation {operation!r} is not known; known: {', '.join(tables())}")
    return _api(folder).explain(*([name] if name else []), *args, **kwargs)


def _tables(folder: str) -> dict[str, tuple[Implementation, ...]]:
    table = _api(folder).IMPLEMENTATIONS
    if isinstance(table, dict):
        return {f"{folder}.{name}": implementations for name, implementations in table.items()}
    return {folder: table}


def _api(folder: str) -> Any:
    return importlib.import_module(f"pallas_kernels.{folder}.api")
