"""Programs for devices that are not at hand: lowered for any platform, compiled for TPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import jax
import pytest
from jax import export

from pallas_kernels import native, triton_launch, using

GENERATIONS = ("v5e", "v6e")
"""TPUs that kernels are compiled for in tests marked `tpu_compiler`."""
CALLS = {"tpu": "tpu_custom_call", "cuda": "mosaic_gpu"}
"""What a Pallas kernel has become in the module, by platform."""
TRITON_CALLS = ("triton_kernel_call", "triton_kernel_call_ffi")
"""What a Triton kernel has become in the module, with jax-triton before 0.4 and since."""


def _without_jax_triton() -> str | None:
    if reason := triton_launch.missing(interpreted=False):
        return reason
    try:
        import jax_triton  # noqa: F401
    except ImportError as error:  # before 0.4 it wants JAX's plugin for CUDA, which the extra brings
        return f"jax_triton cannot be imported: {error}"
    return None


needs_triton = pytest.mark.skipif(bool(triton_launch.missing(interpreted=True)), reason="Triton is not installed")
needs_native = pytest.mark.skipif(not native.available(), reason=str(native.reason()))
needs_jax_triton = pytest.mark.skipif(bool(_without_jax_triton()), reason=str(_without_jax_triton()))


def here(names: Iterable[str]) -> list[Any]:
    """Parameters of tests for the implementations that run on any machine: all but kernels compiled for a device."""
    marks = {"triton_interpret": needs_triton, "triton_prefill_interpret": needs_triton, "cpu_native": needs_native}
    return [
        pytest.param(name, marks=marks.get(name, ()))
        for name in names
        if not name.startswith(("pallas_", "triton")) or name.endswith("_interpret")
    ]


def lowered(function: Callable[..., Any], platform: str, *shapes: Any) -> str:
    """The module (StableHLO) of the function for "tpu" or "cuda"; `shapes` are trees of jax.ShapeDtypeStruct."""
    unchecked = [export.DisabledSafetyCheck.custom_call(name) for name in TRITON_CALLS]
    exported = export.export(jax.jit(function), platforms=[platform], disabled_checks=unchecked)
    return exported(*shapes).mlir_module()


def kernel_calls(module: str, platform: str) -> list[str]:
    """The lines of a module that call a Pallas kernel."""
    return [line for line in module.splitlines() if CALLS[platform] in line]


def triton_calls(module: str) -> list[str]:
    """The lines of a module that call a Triton kernel."""
    return [line for line in module.splitlines() if f"@{TRITON_CALLS[0]}" in line]


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
    with using(platform="tpu"):
        return jax.jit(function).lower(*placed).compile()
