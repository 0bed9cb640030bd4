"""Every kernel that runs on this device: time, bytes, and the share of the rate at which memory can be copied.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --operation matmul.packed --operation hadamard --json kernels.json
    python benchmarks/kernels.py --prefer    # from then on programs take what was fastest on this kind of device

All are compiled first, side by side, because that takes most of the time; then they are timed one by one. Calls are
chained inside one program, each over memory of its own, and the best of several runs counts. Columns:

    us        microseconds of a call
    MB        what a call reads and writes at least, whatever an implementation moves
    of limit  these bytes per second, over the rate at which a large array is copied (on a CPU: read) in the same run;
              above 1 where a processor's cache holds what calls use, small where arithmetic is the limit
    x XLA     how many times as fast as the form in plain XLA that is the first for this device in the table of
              implementations
    error     the largest difference of one call's results from those of that form, relative to their RMS; on GPUs it
              rounds quantized caches to bfloat16

Sizes are those of a layer of Qwen3.6-27B, or smaller ones (--small, the default on CPUs). Interpreters and references
are left out. What does not compile, does not take the sizes, or gives other results is listed with the reason; the exit
status is 1 if results differ. On an NVIDIA GPU kernels of torch, FlashInfer and flash-linear-attention are timed too,
where they are installed (kernels_peers.py).

--json keeps the figures after each call. The same command goes on with the calls that are not in the file. It leaves
out what crashed, hung or failed on the device before; after such a failure the exit status is 3.

--prefer prints no table. It measures these calls as engines measure those of a model, see docs/kernels.md, and writes
which implementations are the fastest into `pallas_kernels/tuned/`, or into the folder that SPECJAX_TUNED names: for all
users of such a device. What is remembered in the user's cache folder is not measured again: so it can be interrupted,
and goes on the next time.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from pathlib import Path

import jax
import numpy as np
from kernel_cases import cases
from kernel_figures import Figures, Result
from kernels_peers import peers
from machine import description, memory_rate
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pallas_kernels import memory, tuning
from pallas_kernels.cases import Case, words
from pallas_kernels.choices import key_of
from pallas_kernels.measuring import measure as measure_choices
from pallas_kernels.measuring import worth_measuring
from pallas_kernels.measuring.agreement import AGREES, largest_error, numbers
from pallas_kernels.measuring.timing import Effort, Timing, timing
from pallas_kernels.measuring.trials import line_of, material_of, tried
from pallas_kernels.recording import Call
from pallas_kernels.table import TABLE

KEPT_TOGETHER = 16
"""Calls whose choices are written together: what interrupts it costs no more."""
COMPILERS = 8
"""Threads that compile, at most."""
WRONG = "results differ"
GO_ON = 3
"""The exit status after an implementation that failed on the device."""
SMALL, FULL = Effort(2, 1 << 26, 0.15, 3), Effort(6, 1 << 28, 0.5, 5)


@dataclass(frozen=True)
class Ready:
    """An implementation with the program of one call and what times many, or why it has none."""

    impl: str
    program: jax.stages.Compiled | None = None
    run: Timing | None = None
    refused: str | None = None


def compiled(case: Case, effort: Effort) -> list[Ready]:
    """All implementations that run here, those in plain XLA first."""
    platform = jax.default_backend()
    given = jax.eval_shape(lambda: case.make(0))
    in_order = sorted(
        tried(case, platform), key=lambda each: (not each.name.startswith("xla_"), platform not in each.platforms)
    )
    some = []
    for each in in_order:
        try:
            program = jax.jit(partial(case.call, each.name)).lower(given).compile()
            run = timing(case, each.name, [given] * effort.copies_of(case), effort)
        except Exception as error:  # what a compiler refuses is a result like others
            some.append(Ready(each.name, refused=line_of(error)))
        else:
            some.append(Ready(each.name, program, run))
    return some


class Gone(Exception):
    """An implementation failed on the device, which may be unusable now: the rest needs another process."""


def measure(case: Case, ready: list[Ready], figures: Figures, effort: Effort) -> Iterator[Result]:
    """What is ready to run, and then what others have for the same call.

    Raises:
        Gone: an implementation failed when it ran.
    """
    rate = figures.about["bytes_per_second"]
    try:
        material = material_of(case, effort)
    except Exception as error:  # no memory, say
        yield from (Result(*_about(case, each.impl), refused=line_of(error)) for each in ready)
        return
    xla: tuple[float, list[np.ndarray]] | None = None
    for each in ready:
        about = _about(case, each.impl)
        why = each.refused or figures.why_not(case, each.impl)
        if why is not None or each.program is None or each.run is None:
            yield Result(*about, refused=why)
            continue
        figures.trying(case, each.impl)
        try:
            outputs = numbers(each.program(material[0]))
            seconds = each.run(material)
        except KeyboardInterrupt:  # what hangs would not have let it through
            figures.went_well(case, each.impl)
            figures.write()
            raise
        except Exception as error:
            figures.went_wrong(case, each.impl, line_of(error))
            raise Gone(f"{case.operation.name} {each.impl}, {case.sizes}: {line_of(error)}") from error
        figures.went_well(case, each.impl)
        xla = xla or ((seconds, outputs) if each.impl.startswith("xla_") else None)
        share = case.num_bytes / seconds / rate
        if xla is None:
            yield Result(*about, seconds, share)
        elif (error := largest_error(outputs, xla[1])) <= AGREES:
            yield Result(*about, seconds, share, xla[0] / seconds, error)
        else:
            yield Result(*about, refused=f"{WRONG} by {error:.0e}, where {AGREES:.0e} is accepted")
    for name, time_call in peers(case.operation.name, material[0]):
        try:
            seconds = time_call(len(material))
        except Exception as error:  # what others have may refuse the call
            yield Result(*_about(case, name), refused=line_of(error))
            continue
        ratio = None if xla is None else xla[0] / seconds
        yield Result(*_about(case, name), seconds, case.num_bytes / seconds / rate, ratio)


def _about(case: Case, impl: str) -> tuple[str, str, str, int]:
    return case.operation.name, case.sizes, impl, case.num_bytes


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


def _count(done: int, total: int) -> None:
    print(f"{done} of {total} calls", flush=True)


def _prefer(calls: list[Call]) -> None:
    device = tuning.device_kind()
    path = tuning.file_of(device)
    known, remembered = tuning.read(path, device), memory.remembered()
    kept = {key: remembered[key] for key in starmap(key_of, calls) if key in remembered}
    known = replace(known, choices={**known.choices, **kept})
    tuning.write(path, known)
    work = worth_measuring(calls)
    for first in range(0, len(work), KEPT_TOGETHER):
        report = measure_choices(work[first : first + KEPT_TOGETHER], budget=math.inf, progress=_count)
        known = replace(known, choices={**known.choices, **report.choices})
        tuning.write(path, known)
        for choice in report.choices.values():
            for impl in choice.order[:1]:
                print(f"{choice.operation} {words(choice.measured)}: {impl}, {choice.because(impl, device)}")
        for why in report.unfinished:
            print(f"not measured: {why}")
    print(f"written to {path}")


def main() -> int:
    """Print the table, and write JSON and preferences if asked to; returns the exit status."""
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
    chosen = [case for case in cases(small=args.small) if case.operation.name in (args.operation or known)]
    if args.prefer:
        _prefer([(case.operation.name, case.dims) for case in chosen])
        return 0
    rate = memory_rate(1 << (26 if args.small else 30))
    about = {"machine": description(), "bytes_per_second": rate, "small": args.small}
    figures = Figures.at(args.json, about)
    work = [case for case in chosen if not figures.has(case)]
    if len(work) < len(chosen):
        print(f"{len(chosen) - len(work)} of {len(chosen)} calls are in {args.json}; the others are measured")
    console = Console(stderr=True)
    with ThreadPoolExecutor(min(COMPILERS, os.cpu_count() or 1)) as threads:
        made = threads.map(partial(compiled, effort=effort), work)
        ready = list(track(made, "compiling", console=console, total=len(work)))
    try:
        for case, own in track(list(zip(work, ready, strict=True)), "timing", console=console):
            figures.add(list(measure(case, own, figures, effort)))
    except Gone as gone:
        print(f"{gone}. The same command goes on with the others" if args.json else gone)
        return GO_ON
    figures.write()
    print_table(figures.results, rate)
    return int(any(each.refused and each.refused.startswith(WRONG) for each in figures.results))


if __name__ == "__main__":
    sys.exit(main())
