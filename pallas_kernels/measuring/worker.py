"""Tries implementations, in a process that may crash.

Its `main` reads one line of JSON, the `Order`, and writes lines of JSON: what it is about to try, and what was found.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from pallas_kernels.cases.case import Case
from pallas_kernels.measuring.timing import Effort, Timing
from pallas_kernels.measuring.trials import RUNNING, Trial, candidates, line_of, prepared, timed
from pallas_kernels.measuring.turns import Turns

GONE_WRONG = 3
"""The exit status after an implementation that failed on the device."""
WAITING = {"waiting": True}


@dataclass(frozen=True)
class Order:
    """What to try.

    Attributes:
        cases: the module whose `CASES` has a case for each operation.
        calls: [number, operation, dims, names of implementations that are settled].
        effort: how much to measure.
        seconds: after which no further call is begun, but for the first.
        turns: a file, see `Turns`.
    """

    cases: str
    calls: Sequence[tuple[int, str, Mapping[str, Any], Sequence[str]]]
    effort: Mapping[str, Any]
    seconds: float
    turns: str = ""


def lines(order: Order) -> Iterator[dict[str, Any]]:
    """Do what the order says; yields what is about to be tried, and what was found.

    Where others work on the device too, all calls are compiled first, and timed when nobody compiles any more.
    A line has `gone_wrong` if an implementation failed on the device: what comes after it needs another process.
    """
    cases, effort = importlib.import_module(order.cases).CASES, Effort(**order.effort)
    yield {"ready": jax.devices()[0].device_kind}
    compiled: list[tuple[int, Case, dict[str, Timing]]] = []

    def time_them() -> Iterator[dict[str, Any]]:
        for number, case, ready in compiled:
            yield {"at": number}
            yield from _said(number, timed(case, ready, effort), "done")
        compiled.clear()

    with Turns(order.turns) as turns:
        for _ in turns.with_others():
            yield WAITING
        end = time.monotonic() + order.seconds
        for index, (number, operation, dims, settled) in enumerate(order.calls):
            if index and time.monotonic() > end:
                yield {"call": number, "failed": "no time was left"}
                continue
            yield {"at": number}
            ready: dict[str, Timing] = {}
            try:
                case = cases[operation](dims)
                some = candidates(case, jax.default_backend())
            except Exception as error:
                yield {"call": number, "failed": line_of(error)}
                continue
            yield {"call": number, "default": some[0].name}
            # With one there is nothing to choose.
            trying = prepared(case, settled, effort, ready) if len(some) > 1 else ()
            for line in _said(number, trying, "compiled"):
                yield line
                if "compiled" in line:
                    compiled.append((number, case, ready))
            if turns.alone:
                yield from time_them()
        for _ in turns.without_others():
            yield WAITING
        yield from time_them()


def _said(number: int, trials: Iterable[Trial], at_the_end: str) -> Iterator[dict[str, Any]]:
    """What there is to say of trials of a call."""
    try:
        for trial in trials:
            if not trial.settled:
                yield {"trying": [number, trial.impl]}
                continue
            yield {"call": number, **asdict(trial)}
            if trial.left_out and trial.left_out.startswith(RUNNING):
                yield {"gone_wrong": number}
                return
    except Exception as error:  # no memory for this call, say; others may fit
        yield {"call": number, "failed": line_of(error)}
    else:
        yield {at_the_end: number}


def _end_with_the_input() -> None:
    """End this process when nobody listens any more: a kernel that hangs would keep the device from all others."""
    while os.read(0, 1):
        pass
    os._exit(GONE_WRONG)


def main() -> int:
    """Do what the order on the standard input says; returns the exit status."""
    order = Order(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    # What libraries print must not get between our lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in lines(order):
        print(json.dumps(line), file=out, flush=True)
        if "gone_wrong" in line:
            return GONE_WRONG
    return 0
