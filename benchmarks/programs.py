"""Programs of models by shapes, made as loading and engines make them: for devices that need not be there.

They are lowered for any platform. `tpu_devices` and `gpu_devices` only compile; an `absent_mesh` of them compiles
programs of several.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from pallas_kernels import using
from pallas_kernels.table import TABLE
from specjax.decoding.decoder import Decoder
from specjax.mesh.plan import AnyMesh, as_mesh
from specjax.models.protocol import Params
from specjax.runtime.loading import Models
from specjax.runtime.outline import outline_of
from specjax.runtime.programs import Programs

GENERATIONS = ("v5e", "v6e")
"""TPUs that libtpu compiles for ahead of time."""
TOPOLOGIES = {1: "2x2", 2: "2x2", 4: "2x2", 8: "2x4", 16: "4x4"}
"""By number of chips the slice of TPUs that they are taken from."""
GPUS = {
    "h100": """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000
  device_memory_size: 84929347584
  l2_cache_size: 52428800
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""
}
"""GPUs as XLA's compiler wants them described: what the driver says of one that is there."""
ABSENT = (*GENERATIONS, *GPUS)
"""Devices for which programs are compiled though they need not be there."""
PALLAS = {"gpu": "pallas_gpu", "tpu": "pallas_tpu"}
LOWERING = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu", "metal": "metal", "mps": "mps"}
"""What programs are lowered for, by the platform whose kernels they have."""
KERNEL_CALLS = ("tpu_custom_call", "mosaic_gpu")
"""Beginnings of the names that kernels have in a module."""


def kernels_of(platform: str) -> str:
    """What `using` takes to have the Pallas kernels of "gpu" or "tpu" wherever there are some; elsewhere "auto"."""
    if platform not in PALLAS:
        return "auto"
    kernels = (PALLAS[platform], f"{PALLAS[platform]}_prefill")
    named = {operation: [name for name in kernels if name in table] for operation, table in TABLE.items()}
    return ",".join(f"{operation}={'+'.join(names)}" for operation, names in named.items() if names)


def tpu_devices(generation: str, count: int = 1) -> list[Any]:
    """Cores of TPUs such as "v5e" that need not be there; libtpu compiles for them."""
    # Nothing here talks to a TPU: several processes may compile at once, and nobody need ask for the machine's.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    whole = topologies.get_topology_desc(f"{generation}:{TOPOLOGIES[count]}", platform="tpu")
    return list(whole.devices)[:count]


def gpu_devices(name: str = "h100", count: int = 1) -> list[Any]:
    """GPUs of one machine that need not be there, nor a driver: the plugin for CUDA of jax 0.11 compiles for them."""
    from jax.experimental import topologies

    whole = topologies.get_topology_desc(platform="cuda", target_config=GPUS[name], topology=f"1x1x{count}")
    return list(whole.devices)


def absent_devices(target: str, count: int) -> list[Any]:
    """Devices that need not be there, one of `ABSENT`."""
    return gpu_devices(target, count) if target in GPUS else tpu_devices(target, count)


def absent_mesh(target: str, rows: int, model: int) -> AnyMesh:
    """A mesh of devices that need not be there, see `absent_devices`."""
    devices = np.array(absent_devices(target, rows * model)).reshape(rows, model)
    return as_mesh(Mesh(devices, ("rows", "model")))


@dataclass(frozen=True)
class Outlined:
    """A model by shapes, with the kernels and layouts of a platform.

    Attributes:
        decoder, params: what its programs take.
        platform: one of `LOWERING`.
        mesh: where parameters and states lie; None for one device.
        device: what one device compiles for; None: programs are only lowered, unless they are of this machine.
        kernels: what `using` takes.
    """

    decoder: Decoder
    params: Params
    platform: str
    mesh: AnyMesh | None = None
    device: Any = None
    kernels: str = "auto"

    @classmethod
    def of(
        cls,
        models: Models,
        platform: str,
        *,
        mesh: AnyMesh | None = None,
        device: Any = None,
        kernels: str | None = None,
        dtype: str = "bfloat16",
        **settings: Any,
    ) -> Outlined:
        """A model as it is loaded.

        Args:
            models: its file.
            platform, mesh, device: see the attributes.
            kernels: all Pallas kernels that the platform has, unless others are named.
            dtype: of matrices that are not packed.
            settings: of the `Decoder`.
        """
        kernels = kernels_of(platform) if kernels is None else kernels
        with using(kernels, platform=platform):
            params = outline_of(models, dtype=dtype, packed="a16", mesh=mesh).params
        decoder = Decoder(models.target, models.drafter, **settings)
        return cls(decoder, params, platform, mesh, device, kernels)

    def state(self, batch: int, slots: int) -> Any:
        """The shapes of a running state of so many sequences, with room for so many tokens each."""
        with using(self.kernels, platform=self.platform):
            return self._programs(self.params).state(batch, slots)

    def rounds(self, batch: int, slots: int, *, rounds: int = 4) -> jax.stages.Lowered:
        """The program of a chunk of rounds, lowered."""
        return self._lowered(lambda programs, state: programs.rounds(state, rounds=rounds), self.state(batch, slots))

    def feeding(self, batch: int, slots: int, *, columns: int, tokens: int = 256) -> jax.stages.Lowered:
        """The program that feeds a piece of prompts to `columns` of the sequences, lowered."""
        return self._lowered(
            lambda programs, state: programs.feeding(state, batch, columns=columns, tokens=tokens),
            self.state(batch, slots),
        )

    def _programs(self, params: Params) -> Programs:
        return Programs(self.decoder, params, self.mesh)

    def _lowered(self, trace: Callable[[Programs, Any], jax.stages.Traced], state: Any) -> jax.stages.Lowered:
        placed = self.params, state
        if self.device is not None:
            sharding = SingleDeviceSharding(self.device)
            placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), placed)
        with using(self.kernels, platform=self.platform):
            traced = trace(self._programs(placed[0]), placed[1])
            return traced.lower(lowering_platforms=(LOWERING[self.platform],))


def operations(operation: Any) -> Iterator[Any]:
    """An MLIR operation and all that it holds."""
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from operations(inner.operation)


def kernels_in(lowered: jax.stages.Lowered) -> list[str]:
    """The names of the Pallas kernels that a module calls."""
    return [name for target, name in custom_calls(lowered) if target.startswith(KERNEL_CALLS)]


def custom_calls(lowered: jax.stages.Lowered) -> list[tuple[str, str]]:
    """Targets of the custom calls in a module, and the innermost name of the scopes in which each stands."""
    module = lowered.compiler_ir("stablehlo").operation
    calls = [each for each in operations(module) if each.name == "stablehlo.custom_call"]
    scopes = [re.match(r'loc\("([^"]*)"', str(call.location)) for call in calls]
    names = [scope[1].split("/")[-2:][0] if scope else "" for scope in scopes]
    return [(call.attributes["call_target_name"].value, name) for call, name in zip(calls, names, strict=True)]
