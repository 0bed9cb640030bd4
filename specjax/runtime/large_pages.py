"""Weights in large pages of memory, on CPUs.

A step reads all weights, and a processor has to look up the address of each page that it reads. Where Linux gives pages
of 2 MiB only to programs that ask for them, as is usual, XLA does not ask and gets pages of 4 KiB.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
import numpy as np
from jaxtyping import UInt8

from checkpoints.mapping.table import Put

LEAST = 2**16
"""Bytes of an array that is moved. Smaller ones are a small part of what a step reads."""

REGION = 2**26
"""Bytes that are asked for at once, so that arrays which do not fill a page share one."""

ALIGNMENT = 64
"""XLA takes memory as it is if it begins at a multiple of so many bytes. Otherwise it copies."""

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def on_request() -> bool:
    """Whether Linux gives large pages to programs that ask for them, and only to these."""
    return hasattr(mmap, "MADV_HUGEPAGE") and _SETTING.exists() and "[madvise]" in _SETTING.read_text()


def in_large_pages(put: Put) -> Put:
    """What does as `put` does, and moves arrays on a CPU to large pages where Linux gives them on request."""
    if not on_request():
        return put
    return lambda *given: jax.tree.map(_moved, put(*given))


def _moved(array: jax.Array) -> jax.Array:
    if array.nbytes < LEAST or [device.platform for device in array.devices()] != ["cpu"]:
        return array
    values = np.asarray(array)
    try:
        memory = _regions().take(values.nbytes).view(values.dtype).reshape(values.shape)
    except OSError:  # what is left of memory or of addresses is too little for another copy
        return array
    memory[...] = values
    return jax.device_put(memory, array.sharding if array.committed else None, may_alias=True)


class _Regions:
    """Memory for arrays, one behind the other. The system gets a region back when no array in it is left."""

    def __init__(self) -> None:
        self._newest: Callable[[], mmap.mmap | None] = lambda: None  # a weak reference: arrays alone keep a region
        self._used = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> UInt8[np.ndarray, "size"]:
        """Memory of so many bytes, which begins where XLA takes it as it is.

        Raises:
            OSError: there is none.
        """
        if size >= REGION:
            return np.frombuffer(_region(size), np.uint8)
        with self._lock:
            region = self._newest()
            if region is None or len(region) - self._used < size:
                region, self._used = _region(REGION), 0
                self._newest = weakref.ref(region)
            start, self._used = self._used, self._used + -(-size // ALIGNMENT) * ALIGNMENT
            return np.frombuffer(region, np.uint8, size, start)


def _region(size: int) -> mmap.mmap:
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_HUGEPAGE)
    return region


@cache
def _regions() -> _Regions:
    return _Regions()
