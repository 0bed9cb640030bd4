"""What may become of tensors: copied, split, stacked, or computed parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from checkpoints.mapping.transforms import IDENTITY, Shape, Transform
from checkpoints.source import aligned_empty


class Rule(Protocol):
    """Some tensors of a file that together are some parameters of the model."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Tensor names in the file."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the parameters in the tree."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of the tensors are moved as wholes, so that the rule also applies to rows of packed bytes."""
        ...

    @property
    def moves_values(self) -> bool:
        """Whether values are only moved, so that they can stay in the type in which they are stored."""
        ...

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes in the file, given those of the parameters."""
        ...

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        """Parameters from tensors; the tensors come one at a time, in the order of `sources`."""
        ...

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Tensors from parameters: the inverse of `forward`."""
        ...


@dataclass(frozen=True)
class Copy:
    """One tensor is one parameter."""

    source: str
    path: str
    transform: Transform = IDENTITY

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

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


@dataclass(frozen=True)
class Split:
    """One tensor is several parameters of equal shape, one after the other along an axis that is not the last."""

    source: str
    paths: tuple[str, ...]
    axis: int

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def moves_values(self) -> bool:
        return True

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        shape = list(shapes[0])
        shape[self.axis] = sum(s[self.axis] for s in shapes)
        return [tuple(shape)]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        return np.split(next(tensors), len(self.paths), self.axis)

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        yield np.concatenate(parameters, self.axis)


@dataclass(frozen=True)
class Stack:
    """Several tensors of equal shape are one parameter, stacked along a new first axis."""

    sources: tuple[str, ...]
    path: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def moves_values(self) -> bool:
        return True

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


@dataclass(frozen=True)
class Computed:
    """A parameter that follows from the config; the file has no tensor for it."""

    path: str
    values: tuple[float, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

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
