"""Writing a tree of arrays as an Orbax checkpoint, a few arrays at a time.

Orbax asks a type handler to write all leaves of a type. The handler here makes each leaf only when its turn comes, and
waits until it is on the disk, so that the tree need not fit in memory. What it writes is what Orbax writes for NumPy
arrays: `orbax.checkpoint` alone restores it, sharded or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from checkpoints.mapping.table import Progress
from checkpoints.mapping.tree import unflatten

_CHUNK_BYTES = 1 << 22
"""Arrays are stored in chunks of this size: what a device does not hold of one, it hardly reads."""

_BATCH_BYTES = 1 << 24
"""Small arrays are written together until they are this large."""


@dataclass(frozen=True)
class LazyArray:
    """An array that is made when it is written.

    Attributes:
        shape, dtype: of the array.
        make: makes it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


def write_tree(folder: Path, leaves: Mapping[str, LazyArray], progress: Progress | None = None) -> None:
    """Write a checkpoint that `orbax.checkpoint.StandardCheckpointer` and `PyTreeCheckpointer` restore.

    Args:
        folder: must not exist.
        leaves: path -> array; paths have dots between their parts.
        progress: called with bytes written and bytes in all.
    """
    handler = _LazyHandler(sum(leaf.nbytes for leaf in leaves.values()), progress)
    arrays = ocp.type_handlers.ArrayHandler()  # for no leaf; Orbax warns if there is none
    registry = ocp.type_handlers.create_type_handler_registry((LazyArray, handler), (jax.Array, arrays))
    tree = unflatten(leaves)
    arguments = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), tree)
    # Weights do not become smaller by compression.
    saver = ocp.PyTreeCheckpointHandler(type_handler_registry=registry, use_compression=False)
    with ocp.Checkpointer(saver) as checkpointer:
        checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(tree, save_args=arguments))


class _LazyHandler(ocp.type_handlers.NumpyHandler):
    def __init__(self, total: int, progress: Progress | None) -> None:
        super().__init__(deepcopy_host_arrays=False)
        self._total, self._progress, self._done = total, progress, 0

    async def serialize(self, values: Sequence[LazyArray], infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
        for batch in _batches(values):
            arrays = [np.ascontiguousarray(leaf.make()).reshape(leaf.shape) for leaf in values[batch]]
            for written in await super().serialize(arrays, infos[batch], args[batch]):
                written.result()
            self._done += sum(array.nbytes for array in arrays)
            if self._progress is not None:
                self._progress(self._done, self._total)
        return []


def _batches(values: Sequence[LazyArray]) -> Iterator[slice]:
    start, size = 0, 0
    for i, value in enumerate(values):
        if i > start and size + value.nbytes > _BATCH_BYTES:
            yield slice(start, i)
            start, size = i, 0
        size += value.nbytes
    yield slice(start, len(values))
