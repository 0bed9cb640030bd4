"""Which part of each parameter a device has: a value that is made once, when a model is loaded.

No table says how parameters are split. The shapes of the whole model and those of the model of one part are compared:
the axis in which they differ is the split one. Only what stands on an axis side by side, such as q|k|v, must be named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from checkpoints.mapping.parts import entries
from checkpoints.mapping.reading import Values
from specjax.mesh.shards import EXACT, MODEL, ROWS, devices_of

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
        size: of the axis in each part. What the pieces do not fill is zeros.
    """

    axis: int
    length: int
    pieces: tuple[tuple[tuple[int, int], ...], ...]
    size: int

    def fits(self, unit: int) -> bool:
        """Whether rows whose values come in blocks of `unit` are cut between blocks."""
        ends = [self.size, *(end for own in self.pieces for piece in own for end in piece)]
        return self.axis != -1 or not any(end % unit for end in ends)

    def part_of(self, shape: Shape) -> Shape:
        """The shape of a part of an array, whose split axis may count bytes instead of values."""
        axis = self.axis % len(shape)
        return tuple(size * self.size // self.length if each == axis else size for each, size in enumerate(shape))

    def part(self, values: Values, index: int) -> np.ndarray:
        """What one part has of values, whose split axis may count bytes instead."""
        own = sum(stop - start for start, stop in self.pieces[index])
        if not own:
            return np.zeros_like(values.part(self.axis, self.length, ((0, self.size),)))
        part = values.part(self.axis, self.length, self.pieces[index])
        padding = [(0, 0)] * part.ndim
        padding[self.axis] = (0, part.shape[self.axis] * (self.size - own) // own)
        return np.pad(part, padding) if self.size > own else part

    def joined(self, parts: Sequence[np.ndarray], axis: int) -> np.ndarray:
        """The whole of what all parts have, without what they were filled up with, along an axis of these arrays."""
        shape = list(parts[0].shape)
        shape[axis] = self.length
        whole = np.empty(shape, parts[0].dtype)
        along = np.moveaxis(whole, axis, 0)
        for pieces, part in zip(self.pieces, parts, strict=True):
            own = entries(pieces)
            along[own] = np.moveaxis(part, axis, 0)[: len(own)]
        return whole


def cut_of(
    whole: Shape, local: Shape, parts: int, segments: Sequence[int] | None = None, *, shared: bool = False
) -> Cut | None:
    """How an array of a shape is split into parts of another; None if every part is the whole.

    Where the parts have more than there is, the last ones are filled up with zeros; or, if the axis may be `shared`,
    neighbours have the same.

    Raises:
        ValueError: no such cut leads from one to the other.
    """
    differ = [axis for axis in range(-len(whole), 0) if whole[axis] != local[axis]]
    if not differ:
        return None
    (axis,) = differ
    length, size = whole[axis], local[axis]
    if length < parts * size and shared:
        if parts * size % length or length % size:
            raise ValueError(f"{parts} parts of {local} cannot share {whole}")
        starts = [index * length // (parts * size) * size for index in range(parts)]
        return Cut(axis, length, tuple(((start, start + size),) for start in starts), size)
    if length < parts * size and not segments:
        ends = [min(index * size, length) for index in range(parts + 1)]
        return Cut(axis, length, tuple((piece,) for piece in itertools.pairwise(ends)), size)
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
        size,
    )


@dataclass(frozen=True)
class Plan:
    """Where parameters lie on a mesh.

    Attributes:
        mesh: of the axes "rows" and "model", and maybe "exact", all explicit.
        cuts: how each parameter is split, by its path; what is not here lies whole on every device.
    """

    mesh: AnyMesh
    cuts: Mapping[str, Cut] = field(repr=False)

    @classmethod
    def of(
        cls,
        mesh: AnyMesh,
        whole: Mapping[str, Shape],
        local: Mapping[str, Shape],
        segments: Segments,
        shared: Collection[str] = (),
    ) -> Plan:
        """The plan of a model, from the shapes of its parameters and of those of one part.

        Args:
            mesh: the devices.
            whole, local: shapes by paths.
            segments: see there.
            shared: components of the paths of what several parts may have in common.

        Raises:
            ValueError: some parameters cannot be split so; all are listed.
        """
        parts, wrong = mesh.shape[MODEL], []
        cuts: dict[str, Cut] = {}
        for path, shape in whole.items():
            names = path.split(".")
            named = next((segments[name] for name in names if name in segments), None)
            try:
                cut = cut_of(shape, local[path], parts, named, shared=not set(names).isdisjoint(shared))
            except ValueError as error:
                wrong.append(f"{path}: {error}")
            else:
                cuts |= {path: cut} if cut else {}
        if wrong:
            raise ValueError("; ".join(wrong))
        return cls(mesh, cuts)

    @property
    def devices(self) -> np.ndarray:
        """The devices of the mesh, [rows, model]."""
        return self.mesh.devices.reshape(self.mesh.shape[ROWS], self.mesh.shape[MODEL])

    def joined(self, cuts: Mapping[str, Cut]) -> Plan:
        """The plan with further parameters, those of a drafter."""
        return Plan(self.mesh, {**self.cuts, **cuts})

    def misfits(self, units: Mapping[str, int]) -> list[str]:
        """Paths of the matrices that are cut within blocks, if their values come in blocks of so many."""
        return [path for path, cut in self.cuts.items() if not cut.fits(units.get(path, 1))]

    def put(self, path: str, values: Values, form: Callable[[np.ndarray], Any] = np.asarray) -> Any:
        """The parameter of a path on the mesh, of which this process reads what its own devices have.

        An array keeps its axes. Of a packed matrix each device has one of its own; they are piled on the first axis.

        Args:
            path: of the parameter.
            values: of the whole, as the file has them: floats, or rows of packed blocks.
            form: makes the parameter of one device from its part of the values.
        """
        cut = self.cuts.get(path)
        if cut is None:
            return jax.tree.map(self._everywhere, form(values.read()))
        shape, forms = (), {}
        for index in self._own_parts():
            if (pieces := cut.pieces[index]) not in forms:  # neighbours may have the same
                part = cut.part(values, index)
                shape, forms[pieces] = part.shape, form(part)
        own = [forms[cut.pieces[index]] for index in self._own_parts()]
        return jax.tree.map(lambda *leaves: self._joined(cut, shape, leaves), *own)

    def _own_parts(self) -> list[int]:
        """The parts of the model that devices of this process have."""
        here = jax.process_index()
        columns = enumerate(self.devices.T)
        return [index for index, devices in columns if any(device.process_index == here for device in devices)]

    def _everywhere(self, array: Any) -> jax.Array:
        """The array, whole on each device."""
        placed = [jax.device_put(array, device) for device in self.mesh.local_devices]
        return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(self.mesh, PartitionSpec()), placed)

    def put_besides(self, path: str, values: Values, form: Callable[[np.ndarray], Any] = np.asarray) -> Any:
        """A further parameter, whole on every device, if it does not lie on the mesh already."""
        del path
        own = values.read()
        return own if devices_of(own) is not None else jax.tree.map(self._everywhere, form(own))

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
        """One array of the parts that this process has, on its devices; `shape` is that of a part of the values."""
        whole = self._whole(cut, shape, parts[0])
        part_of_index, here = dict(zip(self._own_parts(), parts, strict=True)), jax.process_index()
        placed = [
            jax.device_put(part_of_index[index], device)
            for row in self.devices
            for index, device in enumerate(row)
            if device.process_index == here
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


def as_mesh(given: str | AnyMesh, *, exact: bool = False) -> AnyMesh:
    """A mesh of the devices that there are, from "ROWSxMODEL"; or one that is given, with the right axes.

    `exact` asks for numbers that do not depend on the mesh, see `specjax.mesh.shards.exact`.

    Raises:
        ValueError: the text is something else, there are too few devices, or the mesh has other axes.
    """
    if not isinstance(given, str):
        if tuple(given.axis_names) != (ROWS, MODEL):
            raise ValueError(f"the mesh has the axes {given.axis_names}; they must be {(ROWS, MODEL)}")
        if isinstance(given, AbstractMesh):
            return without_devices(given.axis_sizes, exact=exact)
        return _explicit(given.devices, exact, "the mesh")
    rows, model = sizes_of(given)
    devices = jax.devices()
    if rows * model > len(devices):
        raise ValueError(
            f"mesh is {given!r}, which takes {rows * model} devices; there are {len(devices)}. On a CPU more can be"
            " made: XLA_FLAGS=--xla_force_host_platform_device_count=8"
        )
    return _explicit(np.array(devices[: rows * model]).reshape(rows, model), exact, f"mesh is {given!r}, which")


def sizes_of(text: str) -> tuple[int, int]:
    """The axes of a mesh from "ROWSxMODEL"; ValueError if the text is something else."""
    sizes = text.split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"mesh is {text!r}; give ROWSxMODEL, such as '1x4' or '2x2'")
    return int(sizes[0]), int(sizes[1])


def without_devices(sizes: tuple[int, ...], *, exact: bool = False) -> AbstractMesh:
    """A mesh of these sizes that need not be there; for shapes."""
    axes = _axes(exact)
    return AbstractMesh((*sizes, 1)[: len(axes)], axes, axis_types=(AxisType.Explicit,) * len(axes))


def _axes(exact: bool) -> tuple[str, ...]:
    return (ROWS, MODEL, EXACT) if exact else (ROWS, MODEL)


def _explicit(devices: np.ndarray, exact: bool, what: str) -> Mesh:
    there = {device.process_index for device in devices.flat if device in jax.devices()}  # others are compiled for
    if there and there not in ({jax.process_index()}, set(range(jax.process_count()))):
        raise ValueError(
            f"{what} leaves the devices of some processes out; there are {jax.device_count()} devices of"
            f" {jax.process_count()} processes: use some of each process, or those of this one alone"
        )
    axes = _axes(exact)
    return Mesh(devices[..., None] if exact else devices, axes, axis_types=(AxisType.Explicit,) * len(axes))
