"""Tables of tensor names, and the rules that they stand for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.transforms import IDENTITY, Shape, Transform
from checkpoints.mapping.tree import flatten

Names = tuple[tuple[str, str, Transform], ...]
"""(tensor name within its block, parameter path within its layer, what turns the one into the other)"""
LayerRules = Callable[[str, str], Iterator[Rule]]
"""Makes the rules of a part of a layer, from the prefixes of its tensors and of its parameters."""


def weights(paths: Mapping[str, str], transform: Transform = IDENTITY) -> Names:
    """A table of weights: tensor name -> parameter path, both without `.weight` at the end."""
    return tuple((f"{source}.weight", f"{path}.weight", transform) for source, path in paths.items())


def copies(table: Names, block: str, path: str) -> Iterator[Rule]:
    """A rule for each name of a table, in the block and the layer with these prefixes."""
    for source, parameter, transform in table:
        yield Copy(f"{block}{source}", f"{path}{parameter}", transform)


@functools.cache
def shapes(parameter_shapes: Callable[[Any], Mapping[str, Any]], config: Any) -> Mapping[str, Shape]:
    """Path -> shape of every parameter; `parameter_shapes` gives the tree of a config."""
    return {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(config)).items()}
