"""Programs for devices that are not at hand: lowered for any platform, compiled for TPUs; Triton's kernels for GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
from jax import export

from pallas_kernels import native, triton_launch

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
    marks = {"triton_interpret": needs_triton, "cpu_native": needs_native}
    compiled = ("pallas_tpu", "pallas_gpu", "triton")
    return [pytest.param(name, marks=marks.get(name, ())) for name in names if name not in compiled]


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


class Assembled(NamedTuple):
    """What a Triton kernel takes, by the word of NVIDIA's assembler.

    Attributes:
        target: the architecture that it was made for, such as "sm_80".
        registers: of a thread.
        spilled: bytes of a thread that did not fit into registers.
        shared: bytes of a program in shared memory.
    """

    target: str
    registers: int
    spilled: int
    shared: int


def assembled(call: str, folder: Path) -> Assembled:
    """The Triton kernel that a line of a module calls, made machine code by the assembler that Triton brings."""
    from triton import knobs

    kernel = _message(_message(_message(_call_message(call))[1])[1])  # by jaxlib's gpu/triton.proto
    source, shared = kernel[4], kernel.get(3, 0)
    target = re.search(rb"\.target (sm_\d+)", source)[1].decode()
    (folder / "kernel.ptx").write_bytes(source)
    command = [knobs.nvidia.ptxas.path, "-v", f"-arch={target}", "-o", folder / "kernel.cubin", folder / "kernel.ptx"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = re.search(r"Used (\d+) registers", said)
    return Assembled(target, int(registers[1]), int(spilled[1]) + int(spilled[2]), shared)


def _call_message(call: str) -> bytes:
    """The compressed bytes among the attributes of a call, a string with escapes as MLIR writes them."""
    escaped = re.search(r'= "(x(?:[^"\\]|\\.)*)"', call)[1]
    text = re.sub(r"\\([0-9A-F]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], escaped)
    return zlib.decompress(text.encode("latin1"))


def _message(data: bytes) -> dict[int, Any]:
    """The fields of a message of protocol buffers by number; the last, where one is repeated."""
    fields: dict[int, Any] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        value: Any = varint()
        if kind == 2:
            at, value = at + value, data[at : at + value]
        fields[number] = value
    return fields


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
