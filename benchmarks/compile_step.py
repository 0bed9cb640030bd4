"""What it costs to build a decoding step: lowering, compiling and the size of the program, by number of layers.

    python benchmarks/compile_step.py                           # for this machine
    python benchmarks/compile_step.py --target tpu gpu          # lowered for TPU and CUDA, wherever this runs
    python benchmarks/compile_step.py --target v5e v6e          # compiled ahead of time by libtpu, without a TPU

The program is `decode_chunk`, rounds of three drafts, of a model with the widths of Qwen3.6-27B and its MTP head:
matrices in Q4_K, arranged as the platform wants them. For accelerators it has every Pallas kernel that there is.
Parameters and state are shapes only, so that no memory is needed for them.

Columns: seconds of tracing and lowering; operations and megabytes of the StableHLO module, and its calls of Pallas
kernels (layers that are alike may share one); seconds of compiling, and how many of them are due to each layer that the
line has more than the line before; megabytes of temporary memory on the device. Seconds are those of processors, which
other work on the machine changes little; the clock shows fewer where several compile at once.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from machine import description

from checkpoints.mapping.tree import flatten, is_matrix, unflatten
from pallas_kernels import using
from pallas_kernels.matmul import FORMATS, from_blocks, prepare
from pallas_kernels.table import TABLE
from specjax.decoding.acceptance import RULES, Rule
from specjax.decoding.decoder import Decoder
from specjax.decoding.loop import decode_chunk
from specjax.decoding.new_state import idle_state
from specjax.decoding.settings import Settings
from specjax.models import registry
from specjax.models.protocol import Params
from specjax.models.qwen3_5.config import Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.parameters import parameter_shapes

DRAFTS = 3
GENERATIONS = ("v5e", "v6e")
"""TPUs that libtpu compiles for ahead of time."""
LOWERING = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""What programs are lowered for, by the platform whose kernels they have."""
PALLAS = {"gpu": "pallas_gpu", "tpu": "pallas_tpu"}
KERNEL_CALLS = ("tpu_custom_call", "mosaic_gpu")
"""Beginnings of the names that kernels have in a module."""


def shape_of_27b(layers: int) -> Qwen35Config:
    """The widths of Qwen3.6-27B, which has 64 layers, with its MTP head."""
    return Qwen35Config(
        vocab_size=248320,
        width=5120,
        layer_types=hybrid_layer_types(layers),
        mlp_width=17408,
        num_heads=24,
        num_kv_heads=4,
        head_width=256,
        rope_width=64,
        rope_theta=1e7,
        conv_width=4,
        linear_key_heads=16,
        linear_value_heads=48,
        linear_key_width=128,
        linear_value_width=128,
        context_length=262144,
        mtp_layers=1,
    )


def kernels_of(platform: str) -> str:
    """What `using` takes to have the Pallas kernels of "gpu" or "tpu" wherever there are some; elsewhere "auto"."""
    if platform not in PALLAS:
        return "auto"
    kernels = (PALLAS[platform], f"{PALLAS[platform]}_prefill")
    named = {operation: [name for name in kernels if name in table] for operation, table in TABLE.items()}
    return ",".join(f"{operation}={'+'.join(names)}" for operation, names in named.items() if names)


def packed_shapes(config: Qwen35Config, kind: str = "Q4_K") -> Params:
    """Shapes of parameters as they are loaded from a file with all matrices in `kind`, on the platform of `using`."""

    def shape(path: str, leaf: jax.ShapeDtypeStruct) -> Any:
        if not is_matrix(path, leaf.shape) or leaf.shape[-1] % FORMATS[kind].values:
            return leaf
        blocks = jax.ShapeDtypeStruct((*leaf.shape[:-1], FORMATS[kind].row_bytes(leaf.shape[-1])), jnp.uint8)
        return jax.eval_shape(lambda blocks: prepare(from_blocks(blocks, kind)), blocks)

    return unflatten({path: shape(path, leaf) for path, leaf in flatten(parameter_shapes(config)).items()})


def state_shapes(decoder: Decoder, batch: int, capacity: int) -> Any:
    """Shapes of a `DecodeState` of so many sequences, with room for `capacity` tokens each."""

    return jax.eval_shape(lambda: idle_state(decoder, decoder.settings([Settings()] * batch), capacity))


def lowered_step(
    decoder: Decoder, params: Params, platform: str, *, batch: int = 1, capacity: int = 4096, sharding: Any = None
) -> jax.stages.Lowered:
    """Rounds lowered for a platform ("cpu", "gpu", "tpu") with its kernels, or for the device of a sharding.

    `params` are arrays or their shapes, in the layouts of the platform.
    """
    with using(kernels_of(platform), platform=platform):
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            (params, state_shapes(decoder, batch, capacity)),
        )
        traced = jax.jit(partial(decode_chunk, decoder, rounds=4), donate_argnums=1).trace(*arguments)
        return traced.lower(lowering_platforms=None if sharding else (LOWERING[platform],))


@dataclass(frozen=True)
class Program:
    """Size of a module: operations, calls of Pallas kernels, and bytes when it is serialized."""

    operations: int
    kernels: int
    num_bytes: int

    @classmethod
    def of(cls, lowered: jax.stages.Lowered) -> Program:
        """The size of what was lowered."""
        module, stream = lowered.compiler_ir("stablehlo").operation, io.BytesIO()
        module.write_bytecode(stream)
        return cls(sum(1 for _ in operations(module)), len(kernels_in(lowered)), len(stream.getvalue()))


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


def tpu_sharding(generation: str) -> Any:
    """One core of a TPU that need not be there; None for what is no generation of TPUs."""
    if generation not in GENERATIONS:
        return None
    # Nothing here talks to a TPU: several processes may compile at once, and nobody need ask for the machine's.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    device = topologies.get_topology_desc(f"{generation}:2x2", platform="tpu").devices[0]
    return jax.sharding.SingleDeviceSharding(device)


def report(target: str, layers: Sequence[int], rule: Rule) -> None:
    """Print the table of a target, a line for each number of layers."""
    sharding = tpu_sharding(target)
    platform = "tpu" if sharding else target
    compiles = sharding is not None or platform == jax.default_backend()
    print(f"\n{target}, {'compiled' if compiles else 'lowered only'}")
    titles = ("layers", "lower s", "ops", "MB", "kernels", "compile s", "per layer", "temp MB")
    print(" ".join(f"{title:>9}" for title in titles))
    before = (0, 0.0)
    for count in layers:
        jax.clear_caches()  # so that no line finds what the one before has traced
        config = shape_of_27b(count)
        decoder = Decoder(*registry.build(config), rule=rule, max_drafts=DRAFTS)
        with using(platform=platform):
            params = packed_shapes(config)
        begin = time.process_time()
        lowered = lowered_step(decoder, params, platform, sharding=sharding)
        seconds = time.process_time() - begin
        size = Program.of(lowered)
        cells = [f"{count:>9} {seconds:>9.1f} {size.operations:>9} {size.num_bytes / 1e6:>9.2f} {size.kernels:>9}"]
        if compiles:
            begin = time.process_time()
            try:
                compiled = lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                cells.append(str(error).strip().splitlines()[0])
            else:
                seconds = time.process_time() - begin
                slope = (seconds - before[1]) / (count - before[0])
                temporary = compiled.memory_analysis().temp_size_in_bytes
                cells.append(f"{seconds:>9.1f} {slope:>9.2f} {temporary / 1e6:>9.1f}")
                before = (count, seconds)
        print(" ".join(cells), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--target", nargs="+", choices=[*LOWERING, *GENERATIONS], default=[jax.default_backend()])
    parser.add_argument("--rule", choices=("greedy", *RULES), default="greedy", help="how drafts are accepted")
    args = parser.parse_args()
    print(f"{description()}; Qwen3.6-27B widths, Q4_K, rounds of {DRAFTS} drafts, rule {args.rule}")
    for target in args.target:
        report(target, args.layers, args.rule)


if __name__ == "__main__":
    main()
