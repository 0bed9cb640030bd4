"""`python -m pallas_kernels.measuring.worker`: tries implementations, in a process that may crash.

It reads one line of JSON, the `Order`, and writes lines of JSON: what it is about to try, and what was found.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from pallas_kernels.measuring.timing import Effort
from pallas_kernels.measuring.trials import RUNNING, candidates, line_of, trials

GONE_WRONG = 3
"""The exit status after an implementation that failed on the device: what comes after it needs another process."""


@dataclass(frozen=True)
class Order:
    """What to try.

    Attributes:
        cases: the module whose `CASES` has a case for each operation.
        calls: [number, operation, dims, names of implementations that are settled].
        effort: how much to measure.
    """

    cases: str
    calls: Sequence[tuple[int, str, Mapping[str, Any], Sequence[str]]]
    effort: Mapping[str, Any]


def main() -> int:
    """Do what the order says; returns the exit status."""
    # What libraries print must not get between our lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        print(json.dumps(line), file=out, flush=True)

    order = Order(**json.loads(sys.stdin.readline()))
    cases, effort = importlib.import_module(order.cases).CASES, Effort(**order.effort)
    say(ready=jax.devices()[0].device_kind)
    for number, operation, dims, settled in order.calls:
        try:
            case = cases[operation](dims)
            some = candidates(case, jax.default_backend())
            say(call=number, default=some[0].name)
            if len(some) < 2:  # there is nothing to choose
                say(done=number)
                continue
            for trial in trials(case, settled, effort, lambda impl: say(trying=[number, impl])):  # noqa: B023
                say(call=number, **asdict(trial))
                if trial.left_out and trial.left_out.startswith(RUNNING):
                    return GONE_WRONG
        except Exception as error:  # no memory for this call, say; others may fit
            say(call=number, failed=line_of(error))
        else:
            say(done=number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
