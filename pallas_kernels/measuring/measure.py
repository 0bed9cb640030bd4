"""Finding out which implementations are the fastest on this device, for the calls that a program makes.

Everything runs in processes of their own, which may crash or hang without harm; on TPUs in this one, see `measure`.
Compiling takes most of the time. So on a GPU several processes compile side by side, and time in turns.
An implementation is chosen if its results agree with the law, on random input and on cruel input, and if it is clearly
faster than what the table takes.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import jax

from pallas_kernels import memory, tuning
from pallas_kernels.cases.case import words
from pallas_kernels.choices import COMPANY, Choice, group_of, key_of
from pallas_kernels.measuring.process import Ended, Here, Hung, Starved, Worker, process
from pallas_kernels.measuring.timing import Effort
from pallas_kernels.measuring.trials import Trial, line_of
from pallas_kernels.measuring.worker import Order
from pallas_kernels.recording import Call
from pallas_kernels.table import Dims

WORTH_IT = 1.05
"""Times as fast as what the table takes, at which another implementation is chosen."""
BUDGET = 30.0
"""Seconds after which no further call is tried; the next time goes on there."""
PATIENCE = 40.0
"""Seconds in which an implementation must compile, and in which it must run."""
JAX_TAKES, MEMORY_SHARE = 0.75, ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""The share of a GPU's memory that JAX takes, and the variables that say another."""
STARTING = 120.0
"""Seconds in which a process must open the device."""
EFFORT = Effort(copies=2, cache_bytes=1 << 27, seconds=0.05, runs=3)
CASES = "pallas_kernels.cases"
WORKERS = 8
"""Processes that share a GPU, at most. Each takes about two cores."""
WORKER_BYTES = 2 << 30
"""Memory of a GPU for each of them: a context, libraries, and what most calls are given."""

Progress = Callable[[int, int], None]
"""Is told how many calls are done, of how many."""


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        choices: that were measured, by their keys.
        unfinished: for each call that was not, why.
    """

    choices: Mapping[str, Choice]
    unfinished: Sequence[str]


def worth_measuring(calls: Iterable[Call], *, anew: bool = False) -> list[Call]:
    """One call for each choice that is to be made: that with the most rows.

    Args:
        calls: of a program.
        anew: also what has been measured on this device. What comes with the package was measured elsewhere, perhaps
            with other versions: it says what is taken until then.

    Returns:
        What has not been measured, and then the rest. Of each, those of few rows first, as every round has them; and
        of these, those with the most to do.
    """
    largest: dict[str, Call] = {}
    for call in sorted(calls, key=_company):
        largest[key_of(*call)] = call
    known = memory.remembered()
    new, old = ([call for key, call in largest.items() if (key in known) == seen] for seen in (False, True))
    return sorted(new, key=_urgency) + (sorted(old, key=_urgency) if anew else [])


def _company(call: Call) -> int:
    return math.prod(call[1].get(axis, 1) for axis in (*COMPANY, "S"))


def _urgency(call: Call) -> tuple[bool, int]:
    """Whether it is of many rows, and, below zero, about as much as it has to do."""
    return group_of(call[1]).get("many", False), -math.prod(size for size in call[1].values() if type(size) is int)


@dataclass
class _Work:
    """A call that is being measured."""

    call: Call
    trials: dict[str, Trial] = field(default_factory=dict)
    default: str | None = None

    def choice(self) -> Choice:
        """What is to be kept of it."""
        operation, dims = self.call
        times = {name: each.microseconds for name, each in self.trials.items() if each.microseconds is not None}
        order = sorted(times, key=lambda name: times[name] * (1 if name == self.default else WORTH_IT))
        left_out = {name: each.left_out for name, each in self.trials.items() if each.left_out is not None}
        return Choice(operation, group_of(dims), dict(dims), tuple(order), times, left_out)


def measure(
    calls: Sequence[Call],
    *,
    budget: float = BUDGET,
    patience: float = PATIENCE,
    effort: Effort = EFFORT,
    cases: str = CASES,
    progress: Progress | None = None,
    here: bool | None = None,
    workers: int | None = None,
) -> Report:
    """Measure calls, and remember what was found; what has been timed is kept also when something interrupts it.

    Args:
        calls: see `worth_measuring`.
        budget: seconds after which no further call is begun, or half as many more where a process crashed or hung; each
            process does one at least. Those that work side by side time what they have begun after that.
        patience: seconds in which an implementation must compile, run and be timed.
        effort: how much to measure.
        cases: the module whose `CASES` has the operations.
        progress: see `Progress`.
        here: try everything in this process, in which nothing is contained: what crashes it is left out the next time.
            By default only on TPUs, which one process can have.
        workers: processes that try calls side by side, by default one for two cores on a GPU; on a CPU one, because
            there they would slow each other down.

    Warns:
        RuntimeWarning: an implementation is left out, because it did not compile, crashed, hung or is wrong.
    """
    here = jax.default_backend() == "tpu" if here is None else here
    found = _Found(len(calls), progress or (lambda done, total: None))
    lane = partial(_Lane, found, patience)
    deadline = time.monotonic() + budget

    def order(lane: _Lane, turns: str = "") -> Order:
        # After a crash what had been compiled is compiled again: for that there is half as much time more, once.
        left = deadline + (budget / 2 if lane.tried else 0) - time.monotonic()
        return Order(cases, lane.open_calls(), asdict(effort), left, turns)

    if here:
        only = lane(calls)
        for key, impl in memory.fatal():
            only.leave_out(key, impl, "crashed the process that tried it")
        while only.work:
            only.follow(Here(order(only)), noted=memory.noted)
    elif calls:
        count = min(len(calls), _workers() if workers is None else workers)
        _side_by_side([lane(calls[first::count]) for first in range(count)], order)
    _warn(found.choices)
    return Report(found.choices, found.unfinished)


def _workers() -> int:
    if jax.default_backend() != "gpu":
        return 1
    # Of a container or a job, where the system says it.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(WORKERS, cores // 2, _left_by_the_pool() // WORKER_BYTES))


def _left_by_the_pool() -> int:
    """Bytes of the GPU that this process has not taken for itself, which JAX does at its first use."""
    pool = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    said = [os.environ.get(name) for name in MEMORY_SHARE]
    share = float(next(filter(None, said), JAX_TAKES))
    return int(pool / share) - pool if pool else WORKERS * WORKER_BYTES


def _side_by_side(lanes: Sequence[_Lane], order: Callable[..., Order]) -> None:
    """Let every lane do its work, in processes of its own. What interrupts this process ends them all."""
    stop = threading.Event()
    with tempfile.NamedTemporaryFile() as turns, ThreadPoolExecutor(len(lanes)) as threads:

        def run(lane: _Lane) -> None:
            try:
                while lane.work and not stop.is_set():
                    with process(order(lane, turns.name if len(lanes) > 1 else ""), stop) as tried:
                        lane.follow(tried)
            except OSError as error:  # no process can be started
                lane.give_up(list(lane.work), line_of(error))

        try:
            list(threads.map(run, lanes))
        finally:
            stop.set()


def _not_noted(key: str, impl: str) -> AbstractContextManager:
    return nullcontext()


class _Found:
    """What all lanes have found; they tell it at the same time."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.choices: dict[str, Choice] = {}
        self.unfinished: list[str] = []
        self._total, self._done, self._progress, self._one = total, 0, progress, threading.Lock()

    def add(self, choice: Choice) -> None:
        """Keep the choice for a call that is done."""
        with self._one:
            self.choices[choice.key] = choice
            memory.remember({choice.key: choice})
            self._done += 1
            self._progress(self._done, self._total)

    def give_up(self, calls: Sequence[Call], why: str) -> None:
        """Say why calls are not measured now."""
        with self._one:
            self.unfinished += [f"{operation} {words(dims)}: {why}" for operation, dims in calls]
            self._done += len(calls)


class _Lane:
    """Calls that are being measured, by one worker after the other."""

    def __init__(self, found: _Found, patience: float, calls: Sequence[Call]) -> None:
        self.work = {number: _Work(call) for number, call in enumerate(calls)}
        self.tried = False
        self._found, self._patience = found, patience
        self._at: int | None = None  # the call that the worker is at

    def open_calls(self) -> list[tuple[int, str, Dims, list[str]]]:
        """What a worker is to try."""
        return [(number, *each.call, list(each.trials)) for number, each in self.work.items()]

    def leave_out(self, key: str, impl: str, why: str) -> None:
        """Do not try an implementation of the call of a choice."""
        for each in self.work.values():
            if key_of(*each.call) == key:
                each.trials[impl] = Trial(impl, left_out=why)

    def follow(self, tried: Worker, noted: Callable[[str, str], AbstractContextManager] = _not_noted) -> None:
        """Take in what a worker says, until it has ended or time is up.

        Args:
            tried: the worker.
            noted: what to be in while an implementation, of the call of a choice, is tried.
        """
        ready, trying, self.tried, self._at = False, None, True, None
        try:
            while True:
                about = nullcontext() if trying is None else noted(key_of(*self.work[trying[0]].call), trying[1])
                with about:
                    line = tried.next_line(self._patience if ready else STARTING)
                if line is None:
                    return
                if line.get("ready", tuning.device_kind()) != tuning.device_kind():
                    self.give_up(list(self.work), f"a process of its own has another device, {line['ready']}")
                    return
                ready, trying = True, self._take(line)
        except Starved as starved:
            number = self._at if trying is None else trying[0]
            self.give_up([number] if number in self.work else list(self.work), str(starved))
        except Hung:
            self._blame(ready, trying, f"did not end within {self._patience:g} seconds")
        except Ended as ended:
            self._blame(ready, trying, f"crashed: {ended}")

    def _take(self, line: Mapping[str, Any]) -> tuple[int, str] | None:
        """Take in a line; returns the call and the implementation that are being tried then."""
        match line:
            case {"at": number}:
                self._at = number
            case {"waiting": _}:
                self._at = None
            case {"trying": [number, impl]}:
                return int(number), str(impl)
            case {"call": number, "default": name}:
                self.work[number].default = name
            case {"call": number, "failed": why}:
                self.give_up([number], why)
            case {"call": number, **trial}:
                self.work[number].trials[trial["impl"]] = Trial(**trial)
            case {"done": number} if number in self.work:
                self._found.add(self.work.pop(number).choice())
        return None

    def _blame(self, ready: bool, trying: tuple[int, str] | None, why: str) -> None:
        """Leave out what was being tried; or give up the call, whose law went wrong; or all, if nothing works."""
        if trying is not None:
            number, impl = trying
            self.work[number].trials[impl] = Trial(impl, left_out=why)
        else:
            first = [self._at] if self._at in self.work else list(self.work)[:1]
            self.give_up(first if ready else list(self.work), why)

    def give_up(self, numbers: Sequence[int], why: str) -> None:
        """Do not measure calls now."""
        self._found.give_up([self.work.pop(number).call for number in numbers], why)


def _warn(found: Mapping[str, Choice]) -> None:
    """Say what is left out, once for each implementation."""
    said: set[tuple[str, str]] = set()
    for choice in found.values():
        for impl, why in choice.left_out.items():
            if (choice.operation, impl) not in said:
                said.add((choice.operation, impl))
                warnings.warn(
                    f"{choice.operation} {impl} is left out on {tuning.device_kind()}, {words(choice.measured)}: {why}."
                    f" Please report this line, and {dict(memory.about())}",
                    RuntimeWarning,
                    stacklevel=3,
                )
