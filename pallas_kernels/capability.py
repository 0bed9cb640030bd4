"""The compute capability of the GPU at hand, by which NVIDIA numbers what its GPUs can do."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax

from pallas_kernels.table import Dims


def device_capability() -> str | None:
    """What the default device says of itself, such as "8.6"; None if it is no GPU."""
    return str(jax.devices()[0].compute_capability) if jax.default_backend() == "gpu" else None


def times_ten(capability: str) -> int | None:
    """86 for "8.6"; None where it is not of that form, as for GPUs of AMD."""
    return int(capability.replace(".", "")) if re.fullmatch(r"\d+\.\d", capability) else None


def older_than(oldest: int) -> str | None:
    """Why a kernel for GPUs of a compute capability, times ten, and later ones cannot serve here.

    None where it can, and where no GPU is at hand: programs for other machines are lowered there.
    """
    said = device_capability()
    if said is None or (times_ten(said) or 0) >= oldest:
        return None
    return f"made for NVIDIA GPUs of compute capability {oldest / 10} and later; this one says {said}"


def since_hopper(unfit: Callable[[Dims], str | None]) -> Callable[[Dims], str | None]:
    """`unfit` for a kernel in Mosaic GPU, which knows no GPU before Hopper."""
    return lambda dims: unfit(dims) or older_than(90)


def on_hopper(unfit: Callable[[Dims], str | None]) -> Callable[[Dims], str | None]:
    """`unfit` for a kernel that multiplies with wgmma."""
    return lambda dims: unfit(dims) or without_wgmma()


def without_wgmma() -> str | None:
    """Why kernels that multiply with wgmma cannot serve here: the GPU at hand is no Hopper. None where there is none.

    Left to itself, the compiler would refuse such a kernel when a program that has it is loaded.
    """
    if (said := device_capability()) in (None, "9.0"):
        return None
    kind = jax.devices()[0].device_kind
    return f"multiplies with wgmma, which compute capability 9.0 alone has; {kind} is of {said}"
