"""Workers, line by line: a process that may crash, hang, or fail to open the device; or this one."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any, Protocol

from pallas_kernels.measuring.worker import GONE_WRONG, Order, lines, main
from pallas_kernels.override import VARIABLE

_END = ""
_OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|out.of.memory|bad_alloc|MemoryError", re.IGNORECASE)
_LISTENING = 0.2
"""Seconds after which somebody who waits for a line looks whether it is still wanted."""


class Hung(Exception):
    """The worker has said nothing for too long, and was killed."""


class Ended(Exception):
    """The worker crashed or failed before it said all; the message says how."""


class Starved(Exception):
    """The worker had no memory left, or somebody killed it, as a system without memory does; the message says how."""


class Worker(Protocol):
    """What tries implementations, and says what it finds."""

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None when it has done everything, or must not go on.

        Raises:
            Hung: it said nothing for so many seconds.
            Ended: it crashed or failed.
            Starved: it had no memory left, as far as one can see.
        """


class Here:
    """This process as a worker, where no other can have the device. What crashes takes it along."""

    def __init__(self, order: Order) -> None:
        """
        Args:
            order: what to try.
        """
        self._lines = lines(order)

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """What is found next, however long it takes."""
        return next(self._lines, None)


class Process:
    """A process that works, and what it says."""

    def __init__(self, process: subprocess.Popen, errors: IO[bytes], stop: threading.Event) -> None:
        """
        Args:
            process: with a pipe for its output.
            errors: the file that it writes other output to.
            stop: set when nobody wants to hear more.
        """
        self._process, self._errors, self._stop = process, errors, stop
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(_END)

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; see `Worker`."""
        deadline, line = time.monotonic() + seconds, None
        while line is None and not self._stop.is_set():
            try:
                line = self._lines.get(timeout=_LISTENING)
            except queue.Empty:
                if time.monotonic() > deadline:
                    _kill(self._process)
                    raise Hung from None
        if line is None:
            return None
        if line != _END:
            return dict(json.loads(line))
        if (status := self._process.wait()) not in (0, GONE_WRONG):
            how = self._how_it_ended(status)
            raise Starved(how) if status == -signal.SIGKILL or _OUT_OF_MEMORY.search(how) else Ended(how)
        return None

    def _how_it_ended(self, status: int) -> str:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self._errors.seek(0)
        said = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{how}; it last said: {said[-1].strip()[:200]}" if said else how


@contextmanager
def process(order: Order, stop: threading.Event) -> Iterator[Worker]:
    """A process for an order, which says nothing more after `stop`; it is gone when the block ends."""
    with tempfile.TemporaryFile() as errors:
        started = subprocess.Popen(
            [sys.executable, "-c", f"import sys; from {main.__module__} import main; sys.exit(main())"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for whoever waits for it
        )
        try:
            assert started.stdin is not None
            # It stays open: when this process is gone, whatever ended it, the worker sees the end and ends too.
            started.stdin.write(json.dumps(asdict(order)) + "\n")
            started.stdin.flush()
            yield Process(started, errors, stop)
        finally:
            _kill(started)
            started.wait()
            for pipe in (started.stdin, started.stdout):
                assert pipe is not None
                with suppress(OSError):  # of an order that nobody read
                    pipe.close()


def _kill(process: subprocess.Popen) -> None:
    """With all that it has started, compilers for one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """That of this process, but for what says which kernels compute. The device's memory is taken bit by bit."""
    own = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return own | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": own.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
