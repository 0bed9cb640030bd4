"""What will be written: every tensor of the destination, where it comes from, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from checkpoints.convert.source_model import FLOATS, SourceModel, Stored
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.mapping.rule import Rule
from checkpoints.mapping.table import INTEGERS, RuleTable
from checkpoints.safetensors.file import DTYPES, TYPE_OF_DTYPE
from checkpoints.source import TensorInfo

Shape = tuple[int, ...]
TypeChoice = Callable[[str, Shape, str], str]
"""(name in the destination, shape, type of the parameters) -> type in the destination."""


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the destination.

    Attributes:
        info: its name, shape, type and size there.
        sources: the tensors of the source that it is made of; none if it follows from the config.
        make: makes its values, or its packed rows.
        exact: whether no value is changed.
    """

    info: TensorInfo
    sources: tuple[TensorInfo, ...]
    make: Callable[[], np.ndarray] = field(repr=False, compare=False)
    exact: bool

    @property
    def name(self) -> str:
        """Its name in the destination."""
        return self.info.name


def tensor_bytes(kind: str, shape: Shape) -> int:
    """Bytes of a tensor of any type of GGUF or safetensors files."""
    if kind in DTYPES:
        return int(np.prod(shape, dtype=np.int64)) * np.dtype(DTYPES[kind]).itemsize
    return GGML_TYPES[kind].tensor_bytes(shape)


def from_rules(model: SourceModel, table: RuleTable, choose: TypeChoice) -> Iterator[PlannedTensor]:
    """The tensors that a rule table makes of the model's parameters, in its order."""
    for rule in table.rules:
        incoming = _incoming(model, rule)
        sources = tuple(model.sources_of(rule.paths))
        for index, (name, shape) in enumerate(zip(rule.sources, table.source_shapes(rule), strict=True)):
            kind = choose(name, shape, table.integer_sources.get(name, incoming))
            info = TensorInfo(name, shape, kind, tensor_bytes(kind, shape))
            exact = rule.moves_values and {source.type for source in sources} == {kind}
            yield PlannedTensor(info, sources, _Made(model, rule, index, info), exact)


def as_it_is(model: SourceModel, name: str) -> PlannedTensor:
    """A tensor of the origin, byte by byte."""
    info = model.kept.tensors[name]
    return PlannedTensor(info, (info,), lambda: model.kept.read_blocks(name), exact=True)


def parameter(model: SourceModel, path: str, kind: str) -> PlannedTensor:
    """A parameter by its own name, in a type."""
    info = TensorInfo(path, model.opened.rules.shapes[path], kind, tensor_bytes(kind, model.opened.rules.shapes[path]))
    sources = tuple(model.sources_of([path]))
    exact = model.type_of(path) == kind and {source.type for source in sources} == {kind}
    return PlannedTensor(info, sources, lambda: _in_type(model.parameter(path), kind, path), exact)


@dataclass(frozen=True)
class _Made:
    """One tensor of a rule, computed when it is asked for."""

    model: SourceModel
    rule: Rule
    index: int
    info: TensorInfo

    def __call__(self) -> np.ndarray:
        kind, name = self.info.type, self.info.name
        parameters = [self.model.parameter(path) for path in self.rule.paths]
        # Values that are only moved get their type before, others are computed in float32, or as integers.
        early = kind if self.rule.moves_values or kind in INTEGERS else "F32"
        arrays = [_in_type(parameter, early, name) for parameter in parameters]
        tensor = next(array for i, array in enumerate(self.rule.backward(arrays)) if i == self.index)
        if kind not in DTYPES:
            return tensor.reshape(*self.info.shape[:-1], -1)
        return Stored(TYPE_OF_DTYPE[tensor.dtype], tensor.reshape(self.info.shape)).values(kind, name)


def _in_type(stored: Stored, kind: str, name: str) -> np.ndarray:
    """Values of a plain type, or packed rows of the type that they have."""
    return stored.array if stored.type == kind else stored.values(kind, name)


def _incoming(model: SourceModel, rule: Rule) -> str:
    """The type in which the rule's tensors come without a further change; "packed" types only if rows stay whole."""
    kinds = {model.type_of(path) for path in rule.paths}
    if kinds == {"I32"}:
        return "I32"
    if len(kinds) == 1 and rule.moves_values:
        (kind,) = kinds
        if kind in FLOATS or rule.keeps_rows:
            return kind
    return "F32" if kinds <= set(FLOATS) else DECODED


DECODED = "decoded"
"""Stands for the type of values that were packed and cannot stay so."""
