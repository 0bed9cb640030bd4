"""Processes that share a model must compile it alike, or their devices would work on different programs."""

from __future__ import annotations

import json
from importlib import metadata

from pallas_kernels import memory, override
from specjax.errors import SpecjaxError
from specjax.mesh.hosts import of_all


def check_alike() -> None:
    """Compare what programs depend on besides the model. All processes must call it.

    Raises:
        SpecjaxError: two processes differ. Each process raises it.
    """
    first, *others = map(json.loads, of_all(json.dumps(_own())))
    for process, other in enumerate(others, 1):
        differences = [
            f"{name}: process 0 has {first[name]!r}, process {process} has {value!r}"
            for name, value in other.items()
            if value != first[name]
        ]
        if differences:
            raise SpecjaxError(f"processes that share a model must be alike; {'; '.join(differences)}")


def _own() -> dict[str, str]:
    about = memory.about()
    return {
        "devices of the kind": about["device"],
        "native kernels for": about["native"],
        "specjax": metadata.version("specjax"),
        "jax": about["jax"],
        "packages for kernels": about["triton"],
        "sources of kernels with the hash": about["package"],
        "block sizes (see SPECJAX_TUNED) with the hash": about["blocks"],
        "the choice of kernels": override.current().source,
    }
