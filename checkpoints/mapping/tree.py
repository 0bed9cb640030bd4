"""Parameter trees and the paths of their leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkpoints.mapping.transforms import Shape

SEPARATOR = "."
"""Between the parts of a parameter path, as in `target.layers_0.attn_norm.weight`."""


def is_matrix(path: str, shape: Shape) -> bool:
    """Whether a parameter may be stored in few bits: everything but vectors and convolution taps."""
    return len(shape) > 1 and f"conv{SEPARATOR}" not in path.removesuffix(f"{SEPARATOR}proj{SEPARATOR}weight")


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts -> {path: leaf}."""

    def walk(node: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        if isinstance(node, Mapping):
            for key, child in node.items():
                yield from walk(child, f"{prefix}{SEPARATOR}{key}" if prefix else key)
        else:
            yield prefix, node

    return dict(walk(tree, ""))


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{path: leaf} -> nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree
