"""Which part of each parameter a device has: a value that is made once, when a model is loaded.

No table says how parameters are split. The shapes of the whole model and those of the model of one part are compared:
the axis in which they differ is the split one. Only what stands on an axis side by side, such as q|k|v, must be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from checkpoints.mapping.parts import part_of
from checkpoints.mapping.reading import Values
from specjax.mesh.shards import MODEL, ROWS

Shape = tuple[int, ...]
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

    def part(self, values: np.ndarray, index: int) -> np.ndarray:
        """What one part has of an array, whose split axis may count bytes instead of values."""
        return part_of(values, self.axis, self.length, self.pieces[index])


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

    mesh: Mesh
    cuts: Mapping[str, Cut] = field(repr=False)

    @classmethod
    def of(cls, mesh: Mesh, whole: Mapping[str, Shape], local: Mapping[str, Shape], segments: Segments) -> Plan:
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
                part = values.part(cut.axis, cut.length, pieces)
                shape, forms[pieces] = part.shape, form(part)
        own = [forms[cut.pieces[index]] for index in self._own_parts()]
        return jax.tree.map(lambda *leaves: self._joined(cut, shape, leaves), *own)

    def _own_parts(self) -> list[int]:
        """The parts of the model that devices of this process have."""
        here = jax.process_index()
        columns = enumerate(self.mesh.devices.T)
        return [index for index, devices in columns if any(device.process_index == here for device in devices)]

    def _everywhere(self, array: Any) -> jax.Array:
        """The array, whole on each device."""
        placed = [jax.device_put(array, device) for device in self.mesh.local_devices]
        return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(self.mesh, PartitionSpec()), placed)

    def _joined(self, cut: Cut, shape: Shape, parts: Sequence[Any]) -> jax.Array:
        """One array of the parts that this process has, on its devices; `shape` is that of a part of the values."""
        local = parts[0].shape
        axis = cut.axis % len(shape) if local == shape else 0
        spec = PartitionSpec(*(MODEL if each == axis else None for each in range(len(local))))
        number = self.mesh.shape[MODEL]
        total = tuple(size * number if each == axis else size for each, size in enumerate(local))
        part_of_index, here = dict(zip(self._own_parts(), parts, strict=True)), jax.process_index()
        placed = [
            jax.device_put(part_of_index[index], device)
            for row in self.mesh.devices
            for index, device in enumerate(row)
            if device.process_index == here
        ]
        return jax.make_array_from_single_device_arrays(total, NamedSharding(self.mesh, spec), placed)


def size_of(parameter: Any) -> int:
    """How many values a parameter has that `Plan.put` has made. A packed one tells the size of a part, as devices see
    it; duplicates of KV heads count.
    """
    arrays = jax.tree.leaves(parameter)
    if arrays[0] is parameter:
        return parameter.size
    shardings = [jax.typeof(array).sharding for array in arrays]
    return parameter.size * max(each.mesh.shape[MODEL] if MODEL in each.spec else 1 for each in shardings)


def as_mesh(given: str | Mesh) -> Mesh:
    """A mesh of the devices that there are, from "ROWSxMODEL"; or one that is given, with the right axes.

    Raises:
        ValueError: the text is something else, there are too few devices, or the mesh has other axes.
    """
    if isinstance(given, Mesh):
        if given.axis_names != (ROWS, MODEL):
            raise ValueError(f"the mesh has the axes {given.axis_names}; they must be {(ROWS, MODEL)}")
        return _explicit(given.devices, "the mesh")
    sizes = given.split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"mesh is {given!r}; give ROWSxMODEL, such as '1x4' or '2x2'")
    rows, model = map(int, sizes)
    devices = jax.devices()
    if rows * model > len(devices):
        raise ValueError(
            f"mesh is {given!r}, which takes {rows * model} devices; there are {len(devices)}. On a CPU more can be"
            " made: XLA_FLAGS=--xla_force_host_platform_device_count=8"
        )
    return _explicit(np.array(devices[: rows * model]).reshape(rows, model), f"mesh is {given!r}, which")


def _explicit(devices: np.ndarray, what: str) -> Mesh:
    processes = {device.process_index for device in devices.flat}
    if processes not in ({jax.process_index()}, set(range(jax.process_count()))):
        raise ValueError(
            f"{what} leaves the devices of some processes out; there are {jax.device_count()} devices of"
            f" {jax.process_count()} processes: use some of each process, or those of this one alone"
        )
    return Mesh(devices, (ROWS, MODEL), axis_types=(AxisType.Explicit,) * 2)
