"""What may become of tensors: copied, split, stacked, or computed parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from checkpoints.mapping.transforms import IDENTITY, Shape, Transform
from checkpoints.source import Only, aligned_empty


class Piece(NamedTuple):
    """Some entries of a tensor in the file.

    Attributes:
        source: name of the tensor.
        only: which entries, in the order in which they are wanted.
    """

    source: str
    only: Only


@dataclass(frozen=True)
class Rule(ABC):
    """Some tensors of a file that together are some parameters of the model.

    Attributes:
        sources: names of the tensors in the file.
        paths: of the parameters in the tree.
    """

    sources: tuple[str, ...]
    paths: tuple[str, ...]

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of the tensors are moved as wholes, so that the rule also applies to rows of packed bytes."""
        return True

    @property
    def moves_values(self) -> bool:
        """Whether values are only moved, so that they can stay in the type in which they are stored."""
        return True

    def within(self, block: str, path: str) -> Self:
        """The same rule with these prefixes of its tensors and of its parameters."""
        sources = tuple(block + source for source in self.sources)
        return replace(self, sources=sources, paths=tuple(path + parameter for parameter in self.paths))

    @abstractmethod
    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes in the file, given those of the parameters."""

    @abstractmethod
    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        """Parameters from tensors; the tensors come one at a time, in the order of `sources`."""

    @abstractmethod
    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Tensors from parameters: the inverse of `forward`."""

    def pieces(self, number: int, axis: int, entries: np.ndarray, shapes: Sequence[Shape]) -> Sequence[Piece] | None:
        """Where a part of a parameter stands in the file, so that nothing else need be read.

        Args:
            number: which of the parameters.
            axis: the axis that is cut, counted from the front.
            entries: what the part has of it.
            shapes: those of all parameters of the rule, whole.

        Returns:
            Entries of tensors that are the part, one after the other; None if it is computed from whole tensors.
        """
        del number, axis, entries, shapes
        return None


Rules = tuple[Rule, ...]
"""Rules with names as they are within something, such as a layer; see `Rule.within`."""


@dataclass(frozen=True)
class Copy(Rule):
    """One tensor is one parameter."""

    transform: Transform = IDENTITY

    @property
    def keeps_rows(self) -> bool:
        return self.transform.keeps_rows

    @property
    def moves_values(self) -> bool:
        return self.transform.moves

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [self.transform.stored_shape(shapes[0])]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        return [self.transform.forward(next(tensors))]

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        yield self.transform.backward(parameters[0])

    def pieces(self, number: int, axis: int, entries: np.ndarray, shapes: Sequence[Shape]) -> Sequence[Piece] | None:
        origin = self.transform.origin
        return None if origin is None else [Piece(self.sources[0], origin(axis, entries))]


def copies(names: Mapping[str, str], transform: Transform = IDENTITY) -> Rules:
    """A `Copy` for each pair of a tensor's name and the path of its parameter."""
    return tuple(Copy((source,), (path,), transform) for source, path in names.items())


def weights(names: Mapping[str, str], transform: Transform = IDENTITY) -> Rules:
    """As `copies`, of names that all have `.weight` at the end, which is left out here."""
    return copies({f"{source}.weight": f"{path}.weight" for source, path in names.items()}, transform)


@dataclass(frozen=True)
class Split(Rule):
    """One tensor is several parameters of equal shape, one after the other along an axis that is not the last."""

    axis: int

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        shape = list(shapes[0])
        shape[self.axis] = sum(s[self.axis] for s in shapes)
        return [tuple(shape)]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        return np.split(next(tensors), len(self.paths), self.axis)

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        yield np.concatenate(parameters, self.axis)

    def pieces(self, number: int, axis: int, entries: np.ndarray, shapes: Sequence[Shape]) -> Sequence[Piece] | None:
        before, length = sum(shape[self.axis] for shape in shapes[:number]), shapes[number][self.axis]
        own = {self.axis: np.arange(length)} | {axis: entries}
        return [Piece(self.sources[0], own | {self.axis: before + own[self.axis]})]


@dataclass(frozen=True)
class Stack(Rule):
    """Several tensors of equal shape are one parameter, stacked along a new first axis."""

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[0][1:]] * len(self.sources)

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        first = next(tensors)
        stacked = aligned_empty((len(self.sources), *first.shape), first.dtype)
        stacked[0] = first
        for i, tensor in enumerate(tensors, start=1):
            stacked[i] = tensor
        return [stacked]

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        yield from parameters[0]

    def pieces(self, number: int, axis: int, entries: np.ndarray, shapes: Sequence[Shape]) -> Sequence[Piece] | None:
        if axis == 0:
            return [Piece(self.sources[index], {}) for index in entries]
        return [Piece(source, {axis - 1: entries}) for source in self.sources]


@dataclass(frozen=True)
class Computed(Rule):
    """A parameter that follows from the config; the file has no tensor for it, and `sources` is empty."""

    values: tuple[float, ...]

    @property
    def keeps_rows(self) -> bool:
        return False

    @property
    def moves_values(self) -> bool:
        return False

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return []

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        return [np.array(self.values, np.float32)]

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        return iter(())


def within(rules: Iterable[Rule], block: str, path: str) -> Iterator[Rule]:
    """The rules with these prefixes of their tensors and of their parameters."""
    return (rule.within(block, path) for rule in rules)


def repeated(rules: Iterable[Rule], block: str, path: str, count: int) -> Iterator[Rule]:
    """The rules within each of `count` places; its index goes into the braces of the prefixes."""
    rules = tuple(rules)
    for index in range(count):
        yield from within(rules, block.format(index), path.format(index))


def fitting(rules: Iterable[Rule], shapes: Collection[str], names: Collection[str]) -> Rules:
    """The rules that make up a model, in their order.

    Rules for parameters that the model lacks are left out. If there are several rules for a parameter, the first one
    counts of whose tensors the file has some, or the very first if it has none of any.

    Args:
        rules: all that there may be.
        shapes: paths of the parameters that the model has.
        names: of the tensors that the file has; empty when writing.
    """
    possible = [rule for rule in rules if all(path in shapes for path in rule.paths)]
    taken: set[str] = set()
    chosen = []
    for index in sorted(range(len(possible)), key=lambda i: not any(name in names for name in possible[i].sources)):
        if taken.isdisjoint(possible[index].paths):
            taken.update(possible[index].paths)
            chosen.append(index)
    return tuple(possible[index] for index in sorted(chosen))
