"""Where the time of a round goes on this device: which kernels take it, and how long the device waits for the host.

    python benchmarks/round_profile.py                          # the bundled model
    python benchmarks/random_model.py q4.gguf --shape 27b --type Q4_K --layers 64
    python benchmarks/round_profile.py q4.gguf --draft 0 3 --dtype bfloat16 --kv-type bf16

Whether a draft is accepted is drawn by lot, so random weights will do. Some chunks of rounds are timed; then some are
traced by JAX's profiler, which makes them slower. Columns:

    ms       of the kernel in a round, all its calls together
    calls    in a round
    us       of a call
    share    of the time of all kernels
    kernel   by its name in the program of XLA

On a CPU these are the operations of XLA. One may contain others there, such as a loop: shares are not to be added up.
"Busy" is the share of the traced time in which something runs. The rest of the time the device waits for launches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from machine import description
from rich.console import Console
from rich.table import Table
from trace_cost import ROUNDS, Decoding

import specjax
from specjax.runtime.compilation_cache import use_compilation_cache

CHUNKS = 5


@dataclass(frozen=True)
class Kernel:
    """Something that ran; nanoseconds."""

    name: str
    begin: float
    end: float


def kernels_in(planes: Iterable[Any]) -> Iterator[Kernel]:
    """What ran, from the planes of a profile: on the streams of a device, or else on the threads of XLA for CPUs."""
    planes = list(planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    of_xla = "Stream" if devices else "tf_XLA"
    for plane in devices or planes:
        for line in plane.lines:
            if line.name.startswith(of_xla):
                for event in line.events:
                    if not event.name.startswith("ThunkExecutor"):  # which runs all others
                        yield Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)


def busy(kernels: Iterable[Kernel]) -> float:
    """The share of the time, from the first to the last, in which something runs."""
    inside, first, reached = 0.0, None, 0.0
    for each in sorted(kernels, key=lambda each: each.begin):
        first = each.begin if first is None else first
        inside += max(0.0, each.end - max(each.begin, reached))
        reached = max(reached, each.end)
    return inside / (reached - first) if first is not None and reached > first else 0.0


def print_kernels(kernels: list[Kernel], rounds: int, most: int) -> None:
    """Those that take the most time."""
    times, calls = Counter[str](), Counter[str]()
    for each in kernels:
        times[each.name] += each.end - each.begin
        calls[each.name] += 1
    table = Table(box=None)
    for column in ("ms", "calls", "us", "share"):
        table.add_column(column, justify="right")
    table.add_column("kernel", overflow="fold")
    for name, time in times.most_common(most):
        per_round = f"{time / 1e6 / rounds:.3f}", f"{calls[name] / rounds:.1f}"
        table.add_row(*per_round, f"{time / 1e3 / calls[name]:.1f}", f"{time / times.total():.3f}", name)
    Console(width=None if Console().is_terminal else 160).print(table)


def main() -> None:
    """Time, trace, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="GGUF file or safetensors folder (default: bundled)")
    parser.add_argument("--draft", type=int, nargs="+", default=[0, 3], metavar="K")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--slots", type=int, default=1024, help="of a sequence (default: 1024)")
    parser.add_argument("--dtype", default="float32", help="of activations (default: float32)")
    parser.add_argument("--kv-type", default="f32", help="of KV caches (default: f32)")
    parser.add_argument("--most", type=int, default=30, metavar="N", help="kernels to list (default: 30)")
    args = parser.parse_args()
    use_compilation_cache()
    model = specjax.load(args.model, dtype=args.dtype)
    print(f"{model.path.name}, batch {args.batch}; {description()}")
    for draft in args.draft:
        print(f"K = {draft}: compiling ...", file=sys.stderr)
        options = specjax.GenerateOptions(
            draft=draft, max_tokens=args.slots, ignore_eos=True, kv_type_k=args.kv_type, kv_type_v=args.kv_type
        )
        decoding = Decoding.started(model, options, args.batch, args.slots)
        seconds = statistics.median(decoding.seconds_of_a_round() for _ in range(CHUNKS))
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(CHUNKS):
                    decoding.seconds_of_a_round()
            (path,) = Path(folder).rglob("*.xplane.pb")
            kernels = list(kernels_in(jax.profiler.ProfileData.from_file(str(path)).planes))
        rounds = CHUNKS * ROUNDS
        per_round = f"{len(kernels) / rounds:.0f} kernels a round, busy {busy(kernels):.2f}"
        print(f"K = {draft}: {seconds * 1e3:.3f} ms a round; {per_round}")
        print_kernels(kernels, rounds, args.most)


if __name__ == "__main__":
    main()
