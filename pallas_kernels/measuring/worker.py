"""`python -m pallas_kernels.measuring.worker`: tries implementations, in a process that may crash.

It reads one line of JSON, the `Order`, and writes lines of JSON: what it is about to try, and what was found.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from pallas_kernels.measuring.timing import Effort
from pallas_kernels.measuring.trials import RUNNING, candidates, line_of, trials
from pallas_kernels.measuring.turns import Turns

GONE_WRONG = 3
"""The exit status after an implementation that failed on the device."""


@dataclass(frozen=True)
class Order:
    """What to try.

    Attributes:
        cases: the module whose `CASES` has a case for each operation.
        calls: [number, operation, dims, names of implementations that are settled].
        effort: how much to measure.
        turns: a file, see `Turns`.
    """

    cases: str
    calls: Sequence[tuple[int, str, Mapping[str, Any], Sequence[str]]]
    effort: Mapping[str, Any]
    turns: str = ""


def lines(order: Order) -> Iterator[dict[str, Any]]:
    """Do what the order says; yields what is about to be tried, and what was found.

    The last line has `gone_wrong` if an implementation failed on the device: what comes after it needs another process.
    """
    cases, effort = importlib.import_module(order.cases).CASES, Effort(**order.effort)
    turns = Turns(order.turns)
    yield {"ready": jax.devices()[0].device_kind}
    for number, operation, dims, settled in order.calls:
        try:
            case = cases[operation](dims)
            some = candidates(case, jax.default_backend())
            yield {"call": number, "default": some[0].name}
            if len(some) > 1:  # else there is nothing to choose
                for found in trials(case, settled, effort, turns):
                    if not found.settled:
                        yield {"trying": [number, found.impl]}
                        continue
                    yield {"call": number, **asdict(found)}
                    if found.left_out and found.left_out.startswith(RUNNING):
                        yield {"gone_wrong": number}
                        return
        except Exception as error:  # no memory for this call, say; others may fit
            yield {"call": number, "failed": line_of(error)}
        else:
            yield {"done": number}


def main() -> int:
    """Do what the order on the standard input says; returns the exit status."""
    # What libraries print must not get between our lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    line: dict[str, Any] = {}
    for line in lines(Order(**json.loads(sys.stdin.readline()))):
        print(json.dumps(line), file=out, flush=True)
    return GONE_WRONG if "gone_wrong" in line else 0


if __name__ == "__main__":
    sys.exit(main())
