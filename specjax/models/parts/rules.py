"""The rules of a file: which tensors of it are which parameters of the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from checkpoints.mapping.rule import Rule, fitting
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import Shape
from checkpoints.mapping.tree import flatten
from specjax.mesh.shards import exact, parts

ParameterShapes = Callable[[Any], Mapping[str, Any]]
"""Gives the parameter tree of a config, with a `jax.ShapeDtypeStruct` in place of each array."""


def rule_table(
    parameter_shapes: ParameterShapes,
    config: Any,
    rules: Iterable[Rule],
    names: Collection[str],
    ignored: Mapping[str, str] | None = None,
    integers: Mapping[str, str] | None = None,
) -> RuleTable:
    """The table for a model, of rules among which there are some for everything that it may have, see `fitting`.

    Args:
        parameter_shapes, config: the model.
        rules: see above.
        names: of the file's tensors; empty when writing.
        ignored, integers: see `RuleTable`.
    """
    shapes = _shapes(parameter_shapes, config, (parts(), exact()))
    return RuleTable(fitting(rules, shapes.keys(), names), ignored or {}, shapes, integers or {})


@functools.cache
def _shapes(parameter_shapes: ParameterShapes, config: Any, where: tuple[int, bool]) -> Mapping[str, Shape]:
    """Path -> shape of every parameter, where this is called: in one of so many parts of the model, exact or not."""
    del where
    return {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(config)).items()}
