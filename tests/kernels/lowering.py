"""Programs for devices that are not at hand: lowered for any platform, compiled for TPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
from jax import export

GENERATIONS = ("v5e", "v6e")
"""TPUs that kernels are compiled for in tests marked `tpu_compiler`."""
CALLS = {"tpu": "tpu_custom_call", "cuda": "mosaic_gpu"}
"""What a Pallas kernel has become in the module, by platform."""


def lowered(function: Callable[..., Any], platform: str, *shapes: Any) -> str:
    """The module (StableHLO) of the function for "tpu" or "cuda"; `shapes` are trees of jax.ShapeDtypeStruct."""
    return export.export(jax.jit(function), platforms=[platform])(*shapes).mlir_module()


def kernel_calls(module: str, platform: str) -> list[str]:
    """The lines of a module that call a Pallas kernel."""
    return [line for line in module.splitlines() if CALLS[platform] in line]


def compiled_for_tpu(function: Callable[..., Any], generation: str, *shapes: Any) -> Any:
    """The function compiled ahead of time for one core of "v5e" or "v6e": a jax.stages.Compiled.

    Lowering alone accepts programs that Mosaic then rejects. Needs the package libtpu, but no TPU: for tests marked
    `tpu_compiler`, which `make test-tpu` runs.
    """
    # Nothing here talks to a TPU: several processes may compile at once, and nobody need ask for the machine's.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device = topologies.get_topology_desc(f"{generation}:2x2", platform="tpu").devices[0]
    placed = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(device)), shapes
    )
    return jax.jit(function).lower(*placed).compile()
