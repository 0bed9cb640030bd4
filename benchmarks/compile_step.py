"""What it costs to build a decoding step, and what it takes on each chip: without the chips.

    python benchmarks/compile_step.py                           # for this machine
    python benchmarks/compile_step.py --target tpu gpu          # lowered for TPU and CUDA, wherever this runs
    python benchmarks/compile_step.py --target v5e v6e          # compiled ahead of time by libtpu, without a TPU
    python benchmarks/compile_step.py --target v5e --mesh 1x4 1x8 --model Qwen3.6-27B --type Q8_0
    python benchmarks/compile_step.py --target h100 --mesh 1x2   # by XLA's compiler for GPUs, without one

The program is `decode_chunk`, rounds of three drafts, of a model with the widths of Qwen3.6-27B and its MTP head:
matrices in Q4_K, arranged as the platform wants them. For accelerators it has every Pallas kernel that there is.
Parameters and state are shapes only, so that no memory is needed for them.

Columns: seconds of tracing and lowering; operations and megabytes of the StableHLO module, and its calls of Pallas
kernels (layers that are alike may share one); seconds of compiling, and how many of them are due to each layer that the
line has more than the line before; megabytes of temporary memory on the device. Seconds are those of processors, which
other work on the machine changes little; the clock shows fewer where several compile at once.

With --mesh the programs are those of whole models on several devices, see `mesh_memory.py`. The target h100 needs jax
0.11 with the plugin for CUDA and NVIDIA's assembler: pip install 'jax[cuda13-local]>=0.11,<0.12' nvidia-cuda-nvcc.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from machine import description
from mesh_memory import KERNELS, report_memory
from programs import ABSENT, LOWERING, Outlined, absent_devices, kernels_in, operations
from released_models import RELEASED, opened, shape_of_27b

from specjax.analysis.memory import DEVICES
from specjax.decoding.acceptance import RULES, Rule

DRAFTS = 3


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


def report(target: str, layers: Sequence[int], rule: Rule) -> None:
    """Print the table of a target, a line for each number of layers."""
    device = absent_devices(target, 1)[0] if target in ABSENT else None
    platform = DEVICES[target].platform if target in ABSENT else target
    compiles = device is not None or platform == jax.default_backend()
    print(f"\n{target}, {'compiled' if compiles else 'lowered only'}")
    titles = ("layers", "lower s", "ops", "MB", "kernels", "compile s", "per layer", "temp MB")
    print(" ".join(f"{title:>9}" for title in titles))
    before = (0, 0.0)
    for count in layers:
        jax.clear_caches()  # so that no line finds what the one before has traced
        models = opened(shape_of_27b(count), "Q4_K")
        model = Outlined.of(models, platform, device=device, dtype="float32", rule=rule, max_drafts=DRAFTS)
        begin = time.process_time()
        lowered = model.rounds(1, 4096)
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
    parser.add_argument("--target", nargs="+", choices=[*LOWERING, *ABSENT], default=[jax.default_backend()])
    parser.add_argument("--rule", choices=("greedy", *RULES), default="greedy", help="how drafts are accepted")
    mesh = parser.add_argument_group("on several TPUs or GPUs")
    mesh.add_argument("--mesh", nargs="+", metavar="ROWSxMODEL", help="meshes of chips, such as 1x4")
    mesh.add_argument("--model", nargs="+", choices=RELEASED, default=["Qwen3.6-27B"])
    mesh.add_argument("--type", nargs="+", default=["Q8_0"], help="types of matrices: BF16, Q8_0, Q4_K_M, ...")
    mesh.add_argument("--kernels", nargs="+", choices=KERNELS, default=[*KERNELS], help="those of programs")
    mesh.add_argument("--context", type=int, default=16384, help="tokens of each sequence")
    mesh.add_argument("--batch", type=int, help="sequences (default: what is found to fit)")
    mesh.add_argument("--shapes", action="store_true", help="count by shapes and compile nothing")
    args = parser.parse_args()
    if args.mesh:
        report_memory(args)
        return
    print(f"{description()}; Qwen3.6-27B widths, Q4_K, rounds of {DRAFTS} drafts, rule {args.rule}")
    for target in args.target:
        report(target, args.layers, args.rule)


if __name__ == "__main__":
    main()
