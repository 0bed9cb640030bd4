"""GPU kernels made machine code on a machine without a GPU, by the compilers that JAX and Triton bring.

Lowering alone accepts programs that the compiler then rejects, or that keep in memory what was meant to stay in
registers.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax

_DRIVER = Path(__file__).with_name("gpu_driver.c")


class Assembled(NamedTuple):
    """What a kernel takes, by the word of NVIDIA's assembler.

    Attributes:
        target: the architecture that it was made for, such as "sm_80".
        registers: of a thread.
        spilled: bytes of a thread that did not fit into registers.
        shared: bytes of a program in shared memory; of a Mosaic GPU kernel without its barriers.
    """

    target: str
    registers: int
    spilled: int
    shared: int

    @classmethod
    def by(cls, said: str, target: str, shared: int) -> Assembled:
        """From what the assembler said under -v."""
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
        registers = re.search(r"Used (\d+) registers", said)
        return cls(target, int(registers[1]), int(spilled[1]) + int(spilled[2]), shared)


def without_mosaic_gpu_compiler() -> str | None:
    """Why `compiled_for_gpu` cannot serve here."""
    if jax.__version_info__ < (0, 11):
        return "the plugin of jax 0.10 compiles Mosaic GPU kernels for a GPU that is there only"
    if missing := [name for name in ("jax_cuda13_plugin", "jax_plugins", "triton") if find_spec(name) is None]:
        return f"needs {', '.join(missing)} (pip install 'specjax[gpu-triton]')"
    return None


def compiled_for_gpu(function: Callable[..., Any], folder: Path, *shapes: Any, capability: int = 90) -> list[Assembled]:
    """The Mosaic GPU kernels of a function, compiled by JAX's plugin for a GPU of a compute capability (times ten).

    For tests marked `gpu_compiler`, which `make test-gpu` runs.

    Raises:
        RuntimeError: the compiler rejects a kernel.
    """
    library = _plugin()
    os.environ |= {"GPU_CAPABILITY": str(capability), "MOSAIC_GPU_DUMP_TO": str(folder)}
    made = []
    for module in _mosaic_modules(jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))):
        known = set(folder.glob("*.ptxas"))
        if not library.MosaicGpuCompile(module, len(module)):
            raise RuntimeError(f"the compiler rejects a kernel for capability {capability}; see what it prints")
        (new,) = set(folder.glob("*.ptxas")) - known
        said, resources = new.read_text(), new.with_suffix(".resources.txt").read_text()
        shared = int(re.search(r"smem_scratch_bytes=(\d+)", resources)[1])
        made.append(Assembled.by(said, re.search(r"for '(sm_\w+)'", said)[1], shared))
    return made


def _mosaic_modules(lowered: Any) -> Iterator[bytes]:
    """The kernels in a lowered program, as its calls carry them to the compiler."""

    def calls(operation: Any) -> Iterator[Any]:
        for inner in (op for region in operation.regions for block in region.blocks for op in block.operations):
            if inner.operation.name == "stablehlo.custom_call":
                yield inner.operation
            yield from calls(inner.operation)

    for call in calls(lowered.compiler_ir().operation):
        if "mosaic_gpu" in str(call.attributes["call_target_name"]):
            yield call.attributes["mhlo.backend_config"]["module"].value_bytes


@cache
def _plugin() -> ctypes.CDLL:
    """JAX's plugin for CUDA, with a driver under it that knows one answer only: which GPU to compile for."""
    import jax.experimental.mosaic.gpu  # noqa: F401  # sets variables of its own, which give way to these
    import jax_cuda13_plugin
    import jax_plugins.xla_cuda13
    from triton import knobs

    folder = Path(tempfile.mkdtemp())
    driver, tools = folder / "libcuda.so.1", folder / "bin"
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{driver.name}", "-o", driver, _DRIVER], check=True)
    ctypes.CDLL(driver, mode=ctypes.RTLD_GLOBAL)
    tools.mkdir()
    (tools / "nvdisasm").symlink_to(knobs.nvidia.nvdisasm.path)
    os.environ["MOSAIC_GPU_CUDA_ROOT"] = str(folder)
    os.environ["MOSAIC_GPU_RUNTIME_LIB_PATH"] = f"{jax_cuda13_plugin.__path__[0]}/libmosaic_gpu_runtime.so"
    library = ctypes.CDLL(jax_plugins.xla_cuda13._get_library_path())
    library.MosaicGpuCompile.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.MosaicGpuCompile.restype = ctypes.c_void_p
    return library


def assembled(call: str, folder: Path) -> Assembled:
    """The Triton kernel that a line of a module calls, made machine code by the assembler that Triton brings."""
    from triton.backends.nvidia.compiler import get_ptxas

    kernel = _message(_message(_message(_call_message(call))[1])[1])  # by jaxlib's gpu/triton.proto
    source, shared = kernel[4], kernel.get(3, 0)
    target = re.search(rb"\.target (sm_\d+a?)", source)[1].decode()
    (folder / "kernel.ptx").write_bytes(source)
    assembler = get_ptxas(int(re.search(r"\d+", target)[0])).path
    command = [assembler, "-v", f"-arch={target}", "-o", folder / "kernel.cubin", folder / "kernel.ptx"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return Assembled.by(said, target, shared)


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
