"""A day with a device in one command: slices of under ten minutes, each of which leaves its results.

    python benchmarks/device_day.py gpu --out day          # or tpu; cpu runs small sizes, to try this script
    python benchmarks/device_day.py gpu --out day --list   # what there is to do, and what is done
    python benchmarks/device_day.py gpu --out day          # again: goes on with what has not passed

Every slice is a command in a process of its own, with a limit of time. What it printed lies in OUT/NAME.log, and its
figures in OUT/NAME.json. After each slice OUT/day.json and OUT/day.md are written anew: what passed, and all figures.
This process never opens the device, which may belong to one process at a time.

| slice | what it finds |
| --- | --- |
| device | what the device is |
| kernels-* | times of kernels against XLA, kernels of others where they are installed, and the rate of copies |
| tune-* | block sizes, kept in SPECJAX_TUNED or in the package |
| choices | which implementations are the fastest, compared with the reference; kept there too |
| model-* | steps of models with random weights in released shapes, by `specjax bench`; and of llama.cpp, if LLAMA_BENCH
names a llama-bench that was built for the device |
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 570
"""Seconds of a slice, where nothing else is said."""
LAST_WORDS = 10
"""Seconds in which a slice whose time is over can tidy up."""
MODELS = {
    "gpu": (("27b", "Q4_K", 32), ("27b", "Q8_0", 32), ("27b", "BF16", 16), ("35b-a3b", "Q4_K", 20)),
    "tpu": (("27b", "Q4_K", 16), ("27b", "Q8_0", 16), ("27b", "BF16", 8), ("35b-a3b", "Q4_K", 16)),
    "cpu": (("0.8b", "Q8_0", 4),),
}
"""Shapes, formats and numbers of layers. One chip of a TPU has 16 GB or more, and compiling for a GPU takes most of a
slice: a step grows with the layers."""
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
DESCRIBE = "import machine, json; print(json.dumps({'machine': machine.description()}))"


@dataclass(frozen=True)
class Slice:
    """A piece of work.

    Attributes:
        name: of its files.
        command: what is run in the repository's root.
        figures: whether its output is JSON, to be kept as its figures; else it writes them itself, or has none.
        limit: seconds.
    """

    name: str
    command: Sequence[str]
    figures: bool = False
    limit: float = LIMIT


@dataclass(frozen=True)
class Outcome:
    """What came of a slice: "passed", "failed" or "out of time"; the end of what it printed."""

    status: str
    seconds: float
    said: str


def slices(platform: str, out: Path) -> Iterator[Slice]:
    """All there is to do, in order: what is chosen depends on what was tuned, and models on what was chosen."""
    python = sys.executable
    path = str(ROOT / "benchmarks")
    describe = f"import sys; sys.path.insert(0, {path!r}); {DESCRIBE}"
    yield Slice("device", (python, "-c", describe), figures=True)
    small = ("--small",) if platform == "cpu" else ()
    for name, operations in KERNELS.items():
        asked = [part for operation in operations for part in ("--operation", operation)]
        figures = ("--json", str(out / f"kernels-{name}.json"))
        yield Slice(f"kernels-{name}", (python, "benchmarks/kernels.py", *small, *asked, *figures))
    for name, operations in TUNED.items():
        asked = [part for operation in operations for part in ("--operation", operation)]
        quick = ("--dry-run",) if platform == "cpu" else ()
        yield Slice(f"tune-{name}", (python, "-m", "pallas_kernels.tune", *quick, *asked))
    yield Slice("choices", (python, "benchmarks/kernels.py", *small, "--prefer"))
    for shape, kind, layers in MODELS[platform]:
        yield _model(platform, out, shape, kind, layers)


def _model(platform: str, out: Path, shape: str, kind: str, layers: int) -> Slice:
    """Write a model, measure it, and remove it, because it is large."""
    python, file, name = sys.executable, str(out / "random.gguf"), f"{shape}-{kind}-{layers}"
    made = (python, "benchmarks/random_model.py", file, "--shape", shape, "--type", kind, "--layers", str(layers))
    dtype = "float32" if platform == "cpu" else "bfloat16"
    turns = ("--turns", "1", "--max-tokens", "8") if platform == "cpu" else ("--turns", "3", "--max-tokens", "128")
    bench = ("bench", file, "--draft", "1", "3", "--synthetic-acceptance", "0.8,0.7,0.6", "--dtype", dtype)
    commands = [f"{shlex.join(made)} >&2", shlex.join((python, "-m", "specjax", *bench, *turns, "--json"))]
    if llama := os.environ.get("LLAMA_BENCH"):
        theirs = (llama, "-m", file, "-p", "512", "-n", "128", "-o", "json")
        commands.append(f"{shlex.join(theirs)} > {shlex.quote(str(out / f'llama.cpp-{name}.json'))}")
    script = f"trap 'rm -f {shlex.quote(file)}' EXIT; {' && '.join(commands)}"
    return Slice(f"model-{name}", ("sh", "-c", script), figures=True)


def run(each: Slice, out: Path) -> Outcome:
    """Run a slice; what it leaves lies in the folder."""
    begin, log = time.monotonic(), out / f"{each.name}.log"
    figures = out / f"{each.name}.json" if each.figures else log
    with log.open("w") as errors, figures.open("w" if each.figures else "a") as output:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        process = subprocess.Popen(
            each.command,
            cwd=ROOT,
            stdout=output,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        try:
            status = "passed" if process.wait(each.limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            if process.poll() is None:
                _end(process)
    said = log.read_text(errors="replace").strip().splitlines()[-3:]
    return Outcome(status, round(time.monotonic() - begin, 1), "\n".join(said))


def _end(process: subprocess.Popen) -> None:
    """As Ctrl-C does, so that it can tidy up; what does not listen is killed."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(LAST_WORDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def figures_of(out: Path, name: str) -> Any:
    """What a slice has found; None if there is nothing whole."""
    try:
        return json.loads((out / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None


def outcomes_in(out: Path) -> dict[str, Outcome]:
    """What has been done before."""
    content = figures_of(out, "day") or {"slices": {}}
    return {name: Outcome(**outcome) for name, outcome in content["slices"].items()}


def write(out: Path, outcomes: Mapping[str, Outcome]) -> None:
    """All results as one JSON, and as tables."""
    names = [*outcomes, *(path.stem for path in sorted(out.glob("llama.cpp-*.json")))]
    found = {name: figures for name in names if (figures := figures_of(out, name)) is not None}
    content = {"slices": {name: asdict(outcome) for name, outcome in outcomes.items()}, "figures": found}
    for path, text in ((out / "day.json", json.dumps(content, indent=1)), (out / "day.md", page(outcomes, found))):
        temporary = path.with_suffix(".part")
        temporary.write_text(text + "\n")
        temporary.replace(path)


def page(outcomes: Mapping[str, Outcome], found: Mapping[str, Any]) -> str:
    """The tables: of kernels, of models, and of slices."""
    lines = [f"# Measured on {found.get('device', {}).get('machine', 'an unknown device')}", ""]
    lines += ["| operation | sizes | implementation | us | of the copy rate | x XLA | error |", "| - " * 7 + "|"]
    for name in KERNELS:
        for each in found.get(f"kernels-{name}", {}).get("results", ()):
            lines.append(_kernel(each))
    lines += ["", "| model | K | tokens/s | tokens per round | ms per round | speed-up |", "| - " * 6 + "|"]
    for name, figures in found.items():
        if name.startswith("model-"):
            lines += _steps(name.removeprefix("model-"), figures)
        if name.startswith("llama.cpp-"):
            tests = (f"{each['n_prompt']}+{each['n_gen']}: {each['avg_ts']:.1f}" for each in figures)
            lines.append(f"| {name} | | {', '.join(tests)} | | | |")
    lines += ["", "| slice | | seconds |", "| - " * 3 + "|"]
    lines += [f"| {name} | {outcome.status} | {outcome.seconds} |" for name, outcome in outcomes.items()]
    return "\n".join(lines)


def _kernel(each: Mapping[str, Any]) -> str:
    if "refused" in each:
        return f"| {each['operation']} | {each['sizes']} | {each['impl']} | {each['refused']} | | | |"
    cells = (each.get("share_of_limit"), each.get("times_as_fast_as_xla"))
    ratios = " | ".join("" if value is None else f"{value:.2f}" for value in cells)
    error = f"{each['error']:.0e}" if "error" in each else ""
    return (
        f"| {each['operation']} | {each['sizes']} | {each['impl']} | {each['seconds'] * 1e6:.1f} | {ratios} | {error} |"
    )


def _steps(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    for speed in figures["speeds"]:
        numbers = (speed["tokens_per_second"], speed["tokens_per_round"], speed["round"] * 1e3, speed["speedup"])
        yield f"| {name} | {speed['draft']} | {' | '.join(f'{number:.2f}' for number in numbers)} |"


def main() -> int:
    """Do what is left; returns how many slices did not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", choices=list(MODELS))
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for all results")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="slices that begin so, also if they have passed"
    )
    parser.add_argument("--list", action="store_true", help="say what there is to do")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    out, outcomes = args.out.absolute(), outcomes_in(args.out)
    work = list(slices(args.platform, out))
    for each in work:
        before = outcomes.get(each.name)
        asked = any(each.name.startswith(name) for name in args.only or ())
        if args.list:
            print(f"{each.name:<24} {before.status if before else 'to do':<12} {' '.join(map(str, each.command))}")
            continue
        if not asked and (args.only or (before and before.status == "passed")):
            continue
        print(f"{each.name}, at most {each.limit:.0f} s ...", end=" ", flush=True)
        outcomes[each.name] = run(each, out)
        print(f"{outcomes[each.name].status}, {outcomes[each.name].seconds} s", flush=True)
        write(out, outcomes)
    left = [name for name, outcome in outcomes.items() if outcome.status != "passed"]
    for name in left:
        print(f"{name}: {outcomes[name].status}: {outcomes[name].said}")
    return len(left)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
