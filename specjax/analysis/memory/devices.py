"""Devices and their memory, as their makers publish it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from specjax.errors import SpecjaxError

GIB = 2**30
USABLE = 0.97
"""The share of a device's memory that programs get. libtpu gives them 15.75 of the 16 GiB of a v5e, and 31.25 of the 32
of a v6e. On GPUs JAX takes three quarters, until XLA_PYTHON_CLIENT_MEM_FRACTION says more."""


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
        name: as users name it.
        platform: "cpu", "gpu" or "tpu", by which layouts and kernels are chosen.
        memory: bytes of one device that programs get.
    """

    name: str
    platform: str
    memory: int


_PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "tpu": {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32},
    "gpu": {
        "a100-40": 40,
        "a100-80": 80,
        "h100": 80,
        "h200": 141,
        "b200": 180,
        "rtx4090": 24,
        "rtx5090": 32,
    },
}
"""GiB of one chip, by the pages of Google Cloud on TPUs ("HBM capacity") and NVIDIA's data sheets ("GPU memory")."""

CPU = "cpu"
DEVICES: Mapping[str, Device] = {
    name: Device(name, platform, int(size * GIB * USABLE))
    for platform, sizes in _PUBLISHED.items()
    for name, size in sizes.items()
}


def device_named(name: str, count: int = 1, gib: float | None = None) -> Device:
    """A device by its name. `count` devices of a CPU share the memory of this machine.

    Args:
        name: of the table, or "cpu".
        count: how many of them there are.
        gib: the memory of one, if it has another than the table says.

    Raises:
        SpecjaxError: there is none of that name.
    """
    if name != CPU and name.lower() not in DEVICES:
        raise SpecjaxError(
            f"device is {name!r}; known are {', '.join([*DEVICES, CPU])}. For another one name the one that it is most"
            " like, and give its memory in GiB: device_memory (--device-memory)"
        )
    if gib is not None:
        platform = CPU if name == CPU else DEVICES[name.lower()].platform
        return Device(name, platform, int(gib * GIB))
    if name == CPU:
        return Device(CPU, CPU, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count)
    return DEVICES[name.lower()]
