"""What whole models take on each chip of a mesh, by the word of the compiler; for `compile_step.py --mesh`.

A line is a model on a mesh. Parameters and states are counted by shapes. Of the batches in BATCHES the largest is
sought with which the program of a chunk of rounds fits. libtpu refuses programs that do not fit. XLA's compiler for
GPUs refuses none, but says what a program takes; this is compared with the memory that JAX gives programs there. For
this batch the programs that feed prompts are compiled too: a piece of 256 tokens for one sequence, and for all at once.

Columns, in GiB of each chip: parameters; batch; state, with room for --context tokens of each sequence in bf16 caches;
temporary memory of a chunk of rounds, of a piece for one sequence and of a piece for all, where "-" does not fit; all
that the largest program that fits takes. Then seconds of processors for compiling.

With --shapes nothing is compiled: parameters, the state of one sequence for each row of the mesh, and the batch that
would fit if a tenth of the memory were left for temporaries.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import jax
from machine import description
from programs import ABSENT, GENERATIONS, Outlined, absent_mesh, tpu_devices
from released_models import RELEASED, opened

from specjax.analysis.memory import DEVICES, bytes_on_device
from specjax.errors import SpecjaxError
from specjax.mesh.plan import sizes_of, without_devices
from specjax.state import KVTypes

DRAFTS = 3
KERNELS: Mapping[str, str | None] = {"pallas": None, "xla": "xla"}
"""Names of kernels -> what `Outlined.of` takes."""
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batches of one row of the mesh."""
WANTED = re.compile(r"(?:Used |temporaries \()([\d.]+)G")
AVAILABLE = re.compile(r"available HBM \(([\d.]+)G\)")
"""In what the compiler says of programs that do not fit."""
GIB = 2**30


def compiled(model: Outlined, lowered: jax.stages.Lowered, memory: float) -> jax.stages.Compiled | float:
    """A program of the model; or, where it does not fit so much memory, how many bytes it wants."""
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = WANTED.search(str(error))
        return float(found[1]) * GIB if found else math.inf
    return program if model.platform == "tpu" or total(program) <= memory else total(program)


def largest(model: Outlined, rows: int, context: int, memory: float) -> tuple[int, jax.stages.Compiled] | None:
    """The largest batch whose rounds fit, and their program. Batches that cannot fit by shapes are not tried."""
    parameters, one = bytes_on_device(model.params), bytes_on_device(model.state(rows, context))
    batches = [each for each in BATCHES if parameters + each * one < memory]
    while batches:
        batch = batches.pop()
        program = compiled(model, model.rounds(batch * rows, context), memory)
        if not isinstance(program, float):
            return batch * rows, program
        if program < math.inf:  # what is too much tells how far to go down; half of it, since temporaries shrink too
            batches = [each for each in batches if 2 * (batch - each) * one > program - memory] or batches[:1]
    return None


def temporary(program: jax.stages.Compiled | float) -> int | None:
    """Bytes of temporary memory; None if the program does not fit."""
    return None if isinstance(program, float) else program.memory_analysis().temp_size_in_bytes


def total(program: jax.stages.Compiled) -> int:
    """Bytes of all that a program takes, what it returns in place of its arguments counted once."""
    sizes = program.memory_analysis()
    added = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + added + sizes.generated_code_size_in_bytes


def line(model: Outlined, rows: int, args: argparse.Namespace, memory: float) -> str:
    """What a model on a mesh takes."""
    begin = time.process_time()
    if args.shapes:
        parameters, one = bytes_on_device(model.params), bytes_on_device(model.state(rows, args.context))
        most = max(0, int((0.9 * memory - parameters) // one)) * rows
        return f"{parameters / GIB:>7.2f} {one / GIB:>8.3f} {most:>5}"
    if args.batch:
        batch = args.batch
        program = compiled(model, model.rounds(batch, args.context), memory)
        found = None if isinstance(program, float) else (batch, program)
    else:
        found = largest(model, rows, args.context, memory)
    parameters = bytes_on_device(model.params)
    if found is None:
        return f"{parameters / GIB:>7.2f}  not one sequence of {args.context} tokens for each row fits"
    batch, chunk = found
    pieces = [
        compiled(model, model.feeding(batch, args.context, columns=columns), memory) for columns in {1: 0, batch: 0}
    ]
    programs = [chunk, *(each for each in pieces if not isinstance(each, float))]
    temps = [temporary(each) for each in (chunk, pieces[0], pieces[-1])]
    cells = [
        f"{parameters / GIB:>7.2f}",
        f"{batch:>5}",
        f"{bytes_on_device(model.state(batch, args.context)) / GIB:>7.2f}",
    ]
    cells += ["      -" if each is None else f"{each / GIB:>7.2f}" for each in temps]
    return " ".join([*cells, f"{max(map(total, programs)) / GIB:>7.2f} {time.process_time() - begin:>6.0f}"])


def report_memory(args: argparse.Namespace) -> None:
    """Print a table for each kind of device."""
    print(f"{description()}; {args.context} tokens a sequence, greedy rounds of {DRAFTS} drafts if there is a head")
    for target in args.target:
        if target not in ABSENT:
            raise SystemExit(f"--mesh takes --target {' or '.join(ABSENT)}; got {target}")
        memory = hbm(target) if target in GENERATIONS and not args.shapes else DEVICES[target].memory
        print(f"\n{target}, {memory / GIB:.2f} GiB a chip; GiB of each chip")
        titles: tuple[str, ...] = ("params", "batch", "state", "rounds", "piece", "pieces", "total", "cpu s")
        titles = ("params", "sequence", "batch") if args.shapes else titles
        print(
            f"{'model':<34} "
            + " ".join(f"{title:>{5 if title == 'batch' else max(7, len(title))}}" for title in titles)
        )
        for name in args.model:
            for kind in args.type:
                for sizes in args.mesh:
                    for kernels in args.kernels:
                        jax.clear_caches()
                        label = f"{name} {kind} {sizes} {kernels}"
                        print(f"{label:<34} {_line(name, kind, sizes, kernels, target, args, memory)}", flush=True)


def _line(name: str, kind: str, sizes: str, kernels: str, target: str, args: argparse.Namespace, memory: float) -> str:
    config = RELEASED[name]
    rows, parts = sizes_of(sizes)
    settings: dict[str, Any] = {
        "kv_types": KVTypes("bf16", "bf16"),
        "max_drafts": DRAFTS if config.mtp_layers else 0,
        "rule": "greedy",
        "kernels": KERNELS[kernels],
    }
    try:
        mesh = without_devices((rows, parts)) if args.shapes else absent_mesh(target, rows, parts)
        model = Outlined.of(opened(config, kind, mesh), DEVICES[target].platform, mesh=mesh, **settings)
    except SpecjaxError as error:
        return str(error)[:100] + " ..."
    return line(model, rows, args, memory)


def hbm(target: str) -> float:
    """Bytes that libtpu gives a program on a chip: found by asking for more than there is."""
    (device,) = tpu_devices(target)
    huge = jax.ShapeDtypeStruct((2**40,), "int8", sharding=jax.sharding.SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(huge).compile()
    except jax.errors.JaxRuntimeError as error:
        found = AVAILABLE.search(str(error))
        if found:
            return float(found[1]) * GIB
        raise
    raise RuntimeError(f"a program on {target} may take a terabyte; this libtpu does not say what a chip has")
