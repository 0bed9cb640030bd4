"""Workers, line by line: a process that may crash, hang, or fail to open the device; or this one."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any, Protocol

from pallas_kernels.measuring.worker import GONE_WRONG, Order, lines
from pallas_kernels.override import VARIABLE

_END = ""
_LISTENING = 0.2
"""Seconds after which somebody who waits for a line looks whether it is still wanted."""


class Hung(Exception):
    """The worker has said nothing for too long, and was killed."""


class Ended(Exception):
    """The worker has ended before it said all; the message says how."""


class Worker(Protocol):
    """What tries implementations, and says what it finds."""

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None when it has done everything, or must not go on.

        Raises:
            Hung: it said nothing for so many seconds.
            Ended: it crashed or failed.
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
                    self._process.kill()
                    raise Hung from None
        if line is None:
            return None
        if line != _END:
            return dict(json.loads(line))
        if (status := self._process.wait()) not in (0, GONE_WRONG):
            raise Ended(self._how_it_ended(status))
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
            [sys.executable, "-m", "pallas_kernels.measuring.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for whoever waits for it
        )
        try:
            assert started.stdin is not None
            started.stdin.write(json.dumps(asdict(order)) + "\n")
            started.stdin.close()
            yield Process(started, errors, stop)
        finally:
            started.kill()
            started.wait()
            assert started.stdout is not None
            started.stdout.close()


def _environment() -> dict[str, str]:
    """That of this process, but for what says which kernels compute. The device's memory is taken bit by bit."""
    own = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return own | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": own.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
