"""Every kernel that runs on this device: time, bytes, and the share of the rate at which memory can be copied.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --operation matmul.packed --operation hadamard --json kernels.json
    python benchmarks/kernels.py --prefer    # from then on programs take what was fastest on this kind of device

Calls are chained inside one program, each over memory of its own, and the best of several runs counts. Columns:

    us        microseconds of a call
    MB        what a call reads and writes at least, whatever an implementation moves
    of limit  these bytes per second, over the rate at which a large array is copied (on a CPU: read) in the same run;
              above 1 where a processor's cache holds what calls use, small where arithmetic is the limit
    x XLA     how many times as fast as the form in plain XLA that is the first in the table of implementations
    error     relative RMS difference of one call's results from those of that form

Sizes are those of a layer of Qwen3.6-27B, or smaller ones (--small, the default on CPUs). Interpreters and references
are left out. What does not compile, or does not take the sizes, is listed with the reason. On an NVIDIA GPU kernels of
torch and of flash-linear-attention are timed too, where they are installed (kernels_peers.py).

--prefer writes what to take where nothing is asked for into `pallas_kernels/tuned/`, or the folder that SPECJAX_TUNED
names: by operation the implementation that was faster than XLA at all sizes that it takes, with results that agree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from kernel_cases import Case, cases
from kernels_peers import peers
from machine import description, read_rate
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pallas_kernels import tuning
from pallas_kernels.table import TABLE

PASSES = 2
"""Times that a loop's body visits each copy. A state goes from a buffer into another and back: no copy in between."""


@dataclass(frozen=True)
class Effort:
    """How much to measure: copies of what calls use, bytes that they should exceed, seconds of runs, least runs."""

    copies: int
    cache_bytes: int
    seconds: float
    runs: int


WORTH_IT, AGREES = 1.05, 1e-2
"""Times as fast as XLA, and relative RMS difference from it, at which an implementation is preferred."""
NOT_FOR_THESE_SIZES = "does not fit"
"""What `pallas_kernels.dispatch` says of an implementation that is passed over at some sizes; that harms nobody."""

SMALL, FULL = Effort(2, 1 << 26, 0.15, 3), Effort(6, 1 << 28, 0.5, 5)


@dataclass(frozen=True)
class Result:
    """What was measured of an implementation, or why nothing was; `seconds` are those of a call."""

    operation: str
    sizes: str
    impl: str
    num_bytes: int
    seconds: float | None = None
    share_of_limit: float | None = None
    times_as_fast_as_xla: float | None = None
    error: float | None = None
    refused: str | None = None


def runs_here(impl: str, platform: str) -> bool:
    """Whether an implementation is compiled for a platform, and is none for tests."""
    mine = impl.startswith(("xla_", f"pallas_{platform}", f"{platform}_", *(("triton",) if platform == "gpu" else ())))
    return mine and not impl.endswith("_interpret")


def memory_rate(small: bool) -> float:
    """Bytes per second that memory gives: read on a CPU, read and written on other devices."""
    size = 1 << (26 if small else 30)
    if jax.default_backend() == "cpu":
        floats = jnp.ones((size // 4 // 4096, 4096), jnp.float32)
        return read_rate(jnp.array_split(floats, os.cpu_count() or 1))
    array = jnp.ones((size // 4,), jnp.float32)
    copies = 8
    # Adding one is a copy that no compiler leaves out; a loop keeps the launch out of the time.
    program = jax.jit(lambda x: lax.fori_loop(0, copies, lambda _, x: lax.optimization_barrier(x) + 1, x))
    return 2 * array.nbytes * copies / _best_seconds(partial(program, array), SMALL)


def _best_seconds(run: Any, effort: Effort) -> float:
    jax.block_until_ready(run())
    times: list[float] = []
    while len(times) < effort.runs or sum(times) < effort.seconds:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
        if sum(times) > 10 * effort.seconds:  # a slow form is known well enough
            break
    return min(times)


def seconds_of_a_call(case: Case, impl: str, material: list[Any], rate: float, effort: Effort) -> float:
    """By a program that makes many calls in a row, over one copy of the material after the other."""
    calls = PASSES * len(material)
    repeats = max(1, min(200, round(effort.seconds / 8 * rate / (case.num_bytes * calls))))

    @jax.jit
    def step(chained: Array, own: Any, fixed: Any) -> tuple[Array, Any]:
        # What is fixed must not be worked on ahead of the loop, as decoding of weights could be.
        chained, fixed = lax.optimization_barrier((chained, fixed))
        return case.step(impl, chained, own, fixed)

    def body(_: Any, carry: tuple[Array, list[Any]], fixed: list[Any]) -> tuple[Array, list[Any]]:
        chained, owns = carry[0], list(carry[1])
        for _pass in range(PASSES):
            for index, each in enumerate(fixed):
                chained, owns[index] = step(chained, owns[index], each)
        return chained, owns

    @jax.jit
    def program(chained: Array, owns: list[Any], fixed: list[Any]) -> tuple[Array, list[Any]]:
        return lax.fori_loop(0, repeats, partial(body, fixed=fixed), (chained, owns))

    owns, fixed = (list(part) for part in zip(*material, strict=True))
    return _best_seconds(partial(program, case.chained, owns, fixed), effort) / (repeats * calls)


def outputs_of(case: Case, impl: str, own: Any, fixed: Any) -> list[np.ndarray]:
    """The results of one call that are floats."""
    results = jax.jit(partial(case.step, impl))(case.chained, own, fixed)
    floats = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return [np.asarray(leaf, np.float32) for leaf in floats]


def largest_error(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest relative RMS difference of arrays; NaN if there is one anywhere."""
    return float(np.max([np.linalg.norm(g - w) / np.linalg.norm(w) for g, w in zip(got, want, strict=True)]))


def measure(case: Case, rate: float, effort: Effort) -> Iterator[Result]:
    """All implementations that run here, those in plain XLA first, then what others have for the same call."""
    platform = jax.default_backend()
    names = [name for name in TABLE[case.operation] if runs_here(name, platform)]
    copies = max(1, min(effort.copies, math.ceil(effort.cache_bytes / case.num_bytes)))
    material = [case.make(seed) for seed in range(copies)]
    xla: tuple[float, list[np.ndarray]] | None = None
    for impl in sorted(names, key=lambda name: not name.startswith("xla_")):
        about = (case.operation, case.sizes, impl, case.num_bytes)
        try:
            outputs = outputs_of(case, impl, *material[0])
            seconds = seconds_of_a_call(case, impl, material, rate, effort)
        except Exception as error:  # what a compiler or a device refuses is a result like others
            lines = str(error).splitlines() or [""]
            yield Result(*about, refused=f"{type(error).__name__}: {lines[0]}")
            continue
        xla = xla or ((seconds, outputs) if impl.startswith("xla_") else None)
        share = case.num_bytes / seconds / rate
        if xla is None:
            yield Result(*about, seconds, share)
        else:
            yield Result(*about, seconds, share, xla[0] / seconds, largest_error(outputs, xla[1]))
    for name, time_call in peers(case.operation, case.chained, *material[0]):
        about = (case.operation, case.sizes, name, case.num_bytes)
        try:
            seconds = time_call(copies)
        except Exception as error:  # as above
            yield Result(*about, refused=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            continue
        ratio = None if xla is None else xla[0] / seconds
        yield Result(*about, seconds, case.num_bytes / seconds / rate, ratio)


def print_table(results: list[Result], rate: float) -> None:
    """One row for each implementation."""
    done = "read" if jax.default_backend() == "cpu" else "copied"
    table = Table(title=f"{description()}; memory is {done} at {rate / 1e9:.1f} GB/s", box=None)
    for column in ("operation", "sizes", "implementation"):
        table.add_column(column, overflow="fold")
    for column in ("us", "MB", "of limit", "x XLA", "error"):
        table.add_column(column, justify="right")
    before = None
    for result in results:
        new = (result.operation, result.sizes) != before
        before = (result.operation, result.sizes)
        figures = (result.seconds and f"{result.seconds * 1e6:.1f}", f"{result.num_bytes / 1e6:.2f}")
        ratios = (result.share_of_limit, result.times_as_fast_as_xla)
        shown = ("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        error = "" if result.error is None else f"{result.error:.0e}"
        names = before if new else ("", "")
        cells = ("refused", figures[1], "", "", "") if result.refused else (*figures, *shown, error)
        table.add_row(*names, result.impl, *cells)
    wide = None if Console().is_terminal else 160
    Console(width=wide).print(table)
    for result in results:
        if result.refused:
            print(f"refused: {result.operation} {result.impl}, {result.sizes}: {result.refused}")


def preferences(results: list[Result]) -> dict[str, list[str]]:
    """By operation the implementation that is fastest on the whole, of those that beat XLA at all sizes they take.

    Others follow for the sizes that those before do not take: some are made for few rows, some for many.
    """
    chosen: dict[str, list[str]] = {}
    for operation in dict.fromkeys(result.operation for result in results):
        gains: dict[str, float] = {}
        sizes: dict[str, set[str]] = {}
        for impl in TABLE[operation].keys() & {result.impl for result in results if result.operation == operation}:
            own = [result for result in results if (result.operation, result.impl) == (operation, impl)]
            ran = [result for result in own if not (result.refused and NOT_FOR_THESE_SIZES in result.refused)]
            if ran and all(_is_better(result) for result in ran):
                gains[impl] = math.prod(result.times_as_fast_as_xla or 0 for result in ran) ** (1 / len(ran))
                sizes[impl] = {result.sizes for result in ran}
        served: set[str] = set()
        for impl in sorted(gains, key=lambda impl: -gains[impl]):
            if not sizes[impl] <= served:
                chosen.setdefault(operation, []).append(impl)
                served |= sizes[impl]
    return chosen


def _is_better(result: Result) -> bool:
    if result.times_as_fast_as_xla is None or result.error is None:
        return False
    return result.times_as_fast_as_xla >= WORTH_IT and result.error <= AGREES


def _prefer(results: list[Result]) -> None:
    device = tuning.device_kind()
    path = tuning.file_of(device)
    known, chosen = tuning.read(path, device), preferences(results)
    measured = {result.operation for result in results}
    kept = {operation: impl for operation, impl in known.preferred.items() if operation not in measured}
    tuning.write(path, replace(known, preferred=kept | chosen))
    for operation in sorted(measured):
        print(f"{operation}: {', '.join(chosen.get(operation, ['nothing beats XLA at all sizes']))}")
    print(f"written to {path}")


def main() -> None:
    """Print the table, and write JSON and preferences if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = tuple(TABLE)
    parser.add_argument("--operation", action="append", choices=known, help="only this one; can be repeated")
    parser.add_argument(
        "--small", action=argparse.BooleanOptionalAction, default=jax.default_backend() == "cpu", help="smaller sizes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--prefer", action="store_true", help="let programs on this kind of device take the fastest")
    args = parser.parse_args()

    effort = SMALL if args.small else FULL
    chosen = [case for case in cases(small=args.small) if case.operation in (args.operation or known)]
    rate = memory_rate(args.small)
    results: list[Result] = []
    for case in track(chosen, "kernels", console=Console(stderr=True)):
        results += measure(case, rate, effort)
    print_table(results, rate)
    if args.json:
        figures = [{name: value for name, value in asdict(each).items() if value is not None} for each in results]
        document = {"machine": description(), "bytes_per_second": rate, "small": args.small, "results": figures}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if args.prefer:
        _prefer(results)


if __name__ == "__main__":
    main()
