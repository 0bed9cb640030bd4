"""Several processes, each with devices of its own, as on several hosts: they run the same programs at the same time.

Each process makes the same calls in the same order. What one of them alone can know, such as the time or what is in a
file, process 0 tells the others. With one process nothing here does anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

T = TypeVar("T")

HEARTBEAT_SECONDS = 30
"""After so many seconds without a word from a process the others end."""


def join(coordinator: str | None = None, processes: int | None = None, process: int | None = None) -> None:
    """Join the processes of a job. To be called in each of them, before anything else is done with JAX.

    Args:
        coordinator: HOST:PORT, an address of process 0 that the others reach, and a free port there.
        processes: how many there are.
        process: which of them this one is, from 0. What is None is found by JAX itself in jobs of SLURM and of Open
            MPI, on Cloud TPUs, and on TPUs of GKE.

    Raises:
        ValueError: something is missing and cannot be found.
        RuntimeError: JAX has been used before, or the others cannot be reached.
    """
    jax.distributed.initialize(
        coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT_SECONDS, shutdown_timeout_seconds=60
    )


def several() -> bool:
    """Whether there is more than one process."""
    return jax.process_count() > 1


def shared(mesh: Mesh | None) -> bool:
    """Whether a mesh has devices of several processes, which then must decide alike. Several processes may also have
    models of their own, and know nothing of each other.
    """
    return mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1


def is_first() -> bool:
    """Whether this is process 0, which writes files and talks to the user."""
    return jax.process_index() == 0


def agreed(value: T) -> T:
    """What process 0 gives, in each process: plain data, as JSON has them. All must call it, and they wait for it."""
    if not several():
        return value
    text = json.dumps(value if is_first() else None).encode()
    (size,) = multihost_utils.broadcast_one_to_all(np.array([len(text)], np.int32))
    padded = np.zeros(int(size), np.uint8)
    padded[: len(text) if is_first() else 0] = np.frombuffer(text if is_first() else b"", np.uint8)
    return json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())


def of_all(text: str) -> list[str]:
    """The texts of all processes, in each of them, in order."""
    if not several():
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(data)], np.int32))[:, 0]
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows = multihost_utils.process_allgather(padded)
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes.tolist(), strict=True)]


def by_first(mesh: Mesh | None, work: Callable[[], None]) -> None:
    """Do something, such as write a file. Of processes that share a mesh the first one does it, and the others wait.

    Raises:
        RuntimeError: it failed there. In process 0 the error is the one that came up.
    """
    if not shared(mesh):
        work()
        return
    error: Exception | None = None
    if is_first():
        try:
            work()
        except Exception as raised:
            error = raised
    failure = agreed(None if error is None else str(error))
    if error is not None:
        raise error
    if failure is not None:
        raise RuntimeError(f"process 0 failed: {failure}")


def placed(array: Any, where: NamedSharding) -> jax.Array:
    """An array that every process has, on a mesh; or one that lies on a mesh already."""
    if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding):
        return jax.device_put(array, where)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


def fetched(array: Any) -> np.ndarray:
    """An array on the host, also one whose parts are on devices of other processes."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)
