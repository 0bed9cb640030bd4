"""Which part of each parameter a device has: a value that is made once, when a model is loaded.

No table says how parameters are split. The shapes of the whole model and those of the model of one part are compared:
the axis in which they differ is the split one. Only what stands on an axis side by side, such as q|k|v, must be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from specjax.mesh.shards import MODEL, ROWS

Shape = tuple[int, ...]
AnyMesh = Mesh | AbstractMesh
"""A mesh of devices; without devices it serves for shapes only, see `Plan.outline`."""
Segments = Mapping[str, Sequence[int]]
"""What stands side by side on the split axis: a component of a parameter's path -> the length of each."""


class Cut(NamedTuple):
    """How one parameter is split.

    Attributes:
        axis: which is split; negative, so that it holds for packed rows too.
        length: of the axis in the whole.
        pieces: for each part, what it has of the axis: (start, stop) one after the other.
    """

    axis: int
    length: int
    pieces: tuple[tuple[tuple[int, int], ...], ...]

    def fits(self, unit: int) -> bool:
        """Whether rows whose values come in blocks of `unit` are cut between blocks."""
        return self.axis != -1 or not any(end % unit for own in self.pieces for piece in own for end in piece)

    def part_of(self, shape: Shape) -> Shape:
        """The shape of a part of an array, whose split axis may count bytes instead of values."""
        axis, own = self.axis % len(shape), sum(stop - start for start, stop in self.pieces[0])
        return tuple(size * own // self.length if each == axis else size for each, size in enumerate(shape))

    def part(self, values: np.ndarray, index: int) -> np.ndarray:
        """What one part has of an array, whose split axis may count bytes instead of values."""
        size = values.shape[self.axis]
        ends = [(start * size // self.length, stop * size // self.length) for start, stop in self.pieces[index]]
        chosen = [np.arange(*each) for each in ends]
        return np.ascontiguousarray(np.take(values, np.concatenate(chosen), axis=self.axis))


def cut_of(whole: Shape, local: Shape, parts: int, segments: Sequence[int] | None = None) -> Cut | None:
    """How an array of a shape is split into parts of another; None if every part is the whole.

    Where an axis is too short to be split, so that parts share what they have, neighbours have the same.

    Raises:
        ValueError: no such cut leads from one to the other.
    """
    differ = [axis for axis in range(-len(whole), 0) if whole[axis] != local[axis]]
    if not differ:
        return None
    (axis,) = differ
    length, size = whole[axis], local[axis]
    if length < parts * size:
        if parts * size % length or length % size:
            raise ValueError(f"{parts} parts of {local} cannot share {whole}")
        starts = [index * length // (parts * size) * size for index in range(parts)]
        return Cut(axis, length, tuple(((start, start + size),) for start in starts))
    segments = segments or (length,)
    if sum(segments) != length or parts * size != length or any(each % parts for each in segments):
        raise ValueError(f"{whole} with the segments {tuple(segments)} cannot be split into {parts} parts of {local}")
    begins = np.cumsum([0, *segments[:-1]])
    return Cut(
        axis,
        length,
        tuple(
            tuple(
                (int(begin) + index * each // parts, int(begin) + (index + 1) * each // parts)
                for begin, each in zip(begins, segments, strict=True)
            )
            for index in range(parts)
        ),
    )


@dataclass(frozen=True)
class Plan:
    """Where parameters lie on a mesh.

    Attributes:
        mesh: of the axes "rows" and "model", both explicit.
        cuts: how each parameter is split, by its path; what is not here lies whole on every device.
    """

    mesh: AnyMesh
    cuts: Mapping[str, Cut] = field(repr=False)

    @classmethod
    def of(cls, mesh: AnyMesh, whole: Mapping[str, Shape], local: Mapping[str, Shape], segments: Segments) -> Plan:
        """The plan of a model, from the shapes of its parameters and of those of one part.

        Raises:
            ValueError: some parameters cannot be split so; all are listed.
        """
        parts, wrong = mesh.shape[MODEL], []
        cuts: dict[str, Cut] = {}
        for path, shape in whole.items():
            named = next((segments[name] for name in path.split(".") if name in segments), None)
            try:
                cut = cut_of(shape, local[path], parts, named)
            except ValueError as error:
                wrong.append(f"{path}: {error}")
            else:
                cuts |= {path: cut} if cut else {}
        if wrong:
            raise ValueError("; ".join(wrong))
        return cls(mesh, cuts)

    def joined(self, cuts: Mapping[str, Cut]) -> Plan:
        """The plan with further parameters, those of a drafter."""
        return Plan(self.mesh, {**self.cuts, **cuts})

    def misfits(self, units: Mapping[str, int]) -> list[str]:
        """Paths of the matrices that are cut within blocks, if their values come in blocks of so many."""
        return [path for path, cut in self.cuts.items() if not cut.fits(units.get(path, 1))]

    def put(self, path: str, values: np.ndarray, form: Callable[[np.ndarray], Any] = np.asarray) -> Any:
        """The parameter of a path on the mesh.

        An array keeps its axes. Of a packed matrix each device has one of its own; they are piled on the first axis.

        Args:
            path: of the parameter.
            values: the whole as the file has it: floats, or rows of packed blocks.
            form: makes the parameter of one device from its part of the values.
        """
        cut = self.cuts.get(path)
        if cut is None:
            return jax.device_put(form(values), NamedSharding(self.mesh, PartitionSpec()))
        parts = [cut.part(values, index) for index in range(self.mesh.shape[MODEL])]
        return jax.tree.map(lambda *leaves: self._joined(cut, parts[0].shape, leaves), *map(form, parts))

    def outline(self, path: str, values: jax.ShapeDtypeStruct, form: Callable[[Any], Any] = lambda x: x) -> Any:
        """The shapes of what `put` makes of values of a shape. They say how it lies, and the mesh needs no devices."""
        cut = self.cuts.get(path)
        if cut is None:
            sharding = NamedSharding(self.mesh, PartitionSpec())
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
                jax.eval_shape(form, values),
            )
        part = jax.ShapeDtypeStruct(cut.part_of(values.shape), values.dtype)
        return jax.tree.map(partial(self._whole, cut, part.shape), jax.eval_shape(form, part))

    def _joined(self, cut: Cut, shape: Shape, parts: Sequence[Any]) -> jax.Array:
        """One array of the parts on all devices; `shape` is that of a part of the values."""
        whole = self._whole(cut, shape, parts[0])
        placed = [
            jax.device_put(part, device) for row in self.mesh.devices for part, device in zip(parts, row, strict=True)
        ]
        return jax.make_array_from_single_device_arrays(whole.shape, whole.sharding, placed)

    def _whole(self, cut: Cut, shape: Shape, part: Any) -> jax.ShapeDtypeStruct:
        """How an array lies of which a device has this part; `shape` is that of a part of the values."""
        axis, parts = cut.axis % len(shape) if part.shape == shape else 0, len(cut.pieces)
        spec = PartitionSpec(*(MODEL if each == axis else None for each in range(len(part.shape))))
        total = tuple(size * parts if each == axis else size for each, size in enumerate(part.shape))
        return jax.ShapeDtypeStruct(total, part.dtype, sharding=NamedSharding(self.mesh, spec))


def size_of(parameter: Any) -> int:
    """How many values a parameter has that `Plan.put` has made. A packed one tells the size of a part, as devices see
    it; duplicates of KV heads count.
    """
    arrays = jax.tree.leaves(parameter)
    if arrays[0] is parameter:
        return parameter.size
    shardings = [jax.typeof(array).sharding for array in arrays]
    return parameter.size * max(each.mesh.shape[MODEL] if MODEL in each.spec else 1 for each in shardings)


def as_mesh(given: str | AnyMesh) -> AnyMesh:
    """A mesh of the devices that there are, from "ROWSxMODEL"; or one that is given, with the right axes.

    Raises:
        ValueError: the text is something else, there are too few devices, or the mesh has other axes.
    """
    if not isinstance(given, str):
        if given.axis_names != (ROWS, MODEL):
            raise ValueError(f"the mesh has the axes {given.axis_names}; they must be {(ROWS, MODEL)}")
        return without_devices(given.axis_sizes) if isinstance(given, AbstractMesh) else _explicit(given.devices)
    rows, model = sizes_of(given)
    devices = jax.devices()
    if rows * model > len(devices):
        raise ValueError(
            f"mesh is {given!r}, which takes {rows * model} devices; there are {len(devices)}. On a CPU more can be"
            " made: XLA_FLAGS=--xla_force_host_platform_device_count=8"
        )
    return _explicit(np.array(devices[: rows * model]).reshape(rows, model))


def sizes_of(text: str) -> tuple[int, int]:
    """The axes of a mesh from "ROWSxMODEL"; ValueError if the text is something else."""
    sizes = text.split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"mesh is {text!r}; give ROWSxMODEL, such as '1x4' or '2x2'")
    return int(sizes[0]), int(sizes[1])


def without_devices(sizes: tuple[int, ...]) -> AbstractMesh:
    """A mesh of these sizes that need not be there; for shapes."""
    return AbstractMesh(sizes, (ROWS, MODEL), axis_types=(AxisType.Explicit,) * 2)


def _explicit(devices: np.ndarray) -> Mesh:
    return Mesh(devices, (ROWS, MODEL), axis_types=(AxisType.Explicit,) * 2)
