"""What there is to do on a day with a device: commands, each with a limit of time."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 570
"""Seconds of a slice, where nothing else is said."""
ATTEMPTS = 8
"""Times that kernels are begun again, within their time. A crash costs the kernel that crashed alone: it is noted, and
the next attempt goes on after it."""
MODELS = {
    "gpu": (
        *(("27b", "Q4_K", 32), ("27b", "Q8_0", 32), ("27b", "BF16", 16)),
        *(("35b-a3b", "Q4_K", 20), ("35b-a3b", "Q8_0", 20)),
    ),
    "tpu": (("27b", "Q4_K", 16), ("27b", "Q8_0", 16), ("27b", "BF16", 8), ("35b-a3b", "Q4_K", 16)),
    "cpu": (("0.8b", "Q8_0", 4),),
}
"""Shapes, formats and numbers of layers. One chip of a TPU has 16 GB or more, and a GPU 32 GB or more; a slice has to
write the model, to measure its kernels and to compile it."""
KERNELS = {
    "products": ("matmul.packed", "matmul.float", "matmul.experts"),
    "deltas": ("gated_delta.verify", "gated_delta.commit", "gated_delta.verify_snapshots", "gated_delta.prefill"),
    "attention": ("cache_attention",),
    "rows": ("hadamard", "causal_conv1d", "rms_norm", "softmax_totals"),
}
TUNED = {
    "products": ("matmul.packed",),
    "deltas": KERNELS["deltas"],
    "attention": KERNELS["attention"],
    "rows": ("hadamard", "causal_conv1d"),
}
LLAMA_BENCH = "LLAMA_BENCH"
"""The variable with the path of llama.cpp's llama-bench."""


@dataclass(frozen=True)
class Slice:
    """A piece of work.

    Attributes:
        name: of its files.
        command: what is run in the repository's root.
        figures: whether its output is JSON, to be kept as its figures; else it writes them itself, or has none.
        limit: seconds.
        attempts: times that it is begun again, within these seconds, if it ends with a status that is neither 0 nor 1.
        after: beginnings of the names of slices whose results it depends on: it is to be done again after them.
    """

    name: str
    command: Sequence[str]
    figures: bool = False
    limit: float = LIMIT
    attempts: int = 1
    after: tuple[str, ...] = ()


def device(platform: str) -> Slice:
    """Find out what the device is; it fails if there is none of this platform."""
    return Slice("device", (sys.executable, "benchmarks/day_machine.py", platform), figures=True)


def slices(platform: str, out: Path) -> Iterator[Slice]:
    """The others, in order: what is chosen depends on what was tuned, and models on what was chosen."""
    python, small = sys.executable, ("--small",) if platform == "cpu" else ()
    for name, operations in TUNED.items():
        quick = ("--dry-run",) if platform == "cpu" else ()
        command = (python, "-m", "pallas_kernels.tune", *quick, *_only(operations))
        yield Slice(f"tune-{name}", command, attempts=ATTEMPTS)
    yield Slice("choices", (python, "benchmarks/kernels.py", *small, "--prefer"), after=("tune-",))
    for name, operations in KERNELS.items():
        figures = ("--json", str(out / f"kernels-{name}.json"))
        command = (python, "benchmarks/kernels.py", *small, *_only(operations), *figures)
        yield Slice(f"kernels-{name}", command, attempts=ATTEMPTS, after=(f"tune-{name}",))
    for shape, kind, layers in MODELS[platform]:
        yield _model(platform, out, shape, kind, layers)


def _only(operations: Sequence[str]) -> list[str]:
    return [part for operation in operations for part in ("--operation", operation)]


def _model(platform: str, out: Path, shape: str, kind: str, layers: int) -> Slice:
    """Write a model, measure it, and remove it, because it is large. Caches are those that llama.cpp has: 16 bits."""
    python, file, name = sys.executable, str(out / "random.gguf"), f"{shape}-{kind}-{layers}"
    made = (python, "benchmarks/random_model.py", file, "--shape", shape, "--type", kind, "--layers", str(layers))
    dtype = "float32" if platform == "cpu" else "bfloat16"
    turns = ("--turns", "1", "--max-tokens", "8") if platform == "cpu" else ("--turns", "3", "--max-tokens", "128")
    caches = ("--kv-type-k", "bf16", "--kv-type-v", "bf16", "--prompt-length", "64")
    bench = ("bench", file, "--draft", "1", "3", "--synthetic-acceptance", "0.8,0.7,0.6", "--dtype", dtype, *caches)
    measured = str(out / f"bench-{name}.json")
    commands = [
        f"{shlex.join(made)} >&2",
        f"{shlex.join((python, '-m', 'specjax', *bench, *turns, '--json'))} > {shlex.quote(measured)}",
        f"cat {shlex.quote(measured)}",
        _besides(
            (python, "benchmarks/roofline.py", file, "--device", "this", "--context", "64", "--measured", measured),
            out / f"roofline-{name}.txt",
        ),
    ]
    if llama := os.environ.get(LLAMA_BENCH):
        theirs = (llama, "-m", file, "-p", "512", "-n", "128", "-o", "json")
        commands.append(_besides(theirs, out / f"llama.cpp-{name}.json"))
    # Not every shell runs what is for its exit when a signal ends it.
    script = f"trap 'rm -f {shlex.quote(file)}' EXIT; trap 'exit 130' INT TERM HUP; {' && '.join(commands)}"
    return Slice(f"model-{name}", ("sh", "-c", script), figures=True, after=("choices",))


def _besides(command: Sequence[str], to: Path) -> str:
    """For the shell: a command whose output goes to a file, and whose failure is said and costs nothing else."""
    return f"{{ {shlex.join(command)} > {shlex.quote(str(to))} || echo {shlex.quote(f'{to.stem}: failed')} >&2; }}"
