"""Commands in several processes, as on several hosts: all compute, and process 0 speaks and writes files."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

from specjax.cli.runtime import BAD_INPUT, INTERRUPTED, LOST, UsageError, message_of, say

BUG = 1
"""The status with which Python ends after an error that nobody expects."""
LOST_SIGNS = ("gloo", "Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "coordination service", "heartbeat")
"""What errors have in them that come of another process that is gone."""
STANDARD_OUTPUT = 1
OUTPUTS = ("out", "trace_file", "traces", "report", "plot")
"""Options that name files or folders to be written."""


@contextmanager
def joined(args: argparse.Namespace) -> Iterator[None]:
    """Join the processes that the command line names, if it names some, for as long as the command runs.

    What other processes than the first would say is not shown, and what they write goes into a folder that is removed.

    Raises:
        UsageError: the command line does not say where they meet, or has no --mesh for them.
    """
    numbers = getattr(args, "processes", None), getattr(args, "process", None)
    if getattr(args, "coordinator", None) is None:
        if numbers != (None, None):
            raise UsageError("--processes and --process need a --coordinator, where the processes meet")
        yield
        return
    found = args.coordinator == "auto"
    if not found and None in numbers:
        raise UsageError("--coordinator needs --processes and --process; or give --coordinator auto")
    if args.mesh is None:
        raise UsageError("several processes need a --mesh of all their devices")

    from specjax.mesh import hosts

    try:
        hosts.join(None if found else args.coordinator, *numbers)
        if hosts.is_first():
            with _own_output():
                yield
        else:
            with _own_output(), _silent(args):
                yield
    except BaseException as error:
        _end(error, numbers[1])


@contextmanager
def _own_output() -> Iterator[None]:
    """Keep the standard output for Python: Gloo, by which CPUs talk to each other, writes lines of its own there."""
    sys.stdout.flush()
    kept = os.dup(STANDARD_OUTPUT)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STANDARD_OUTPUT)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="replace") as output, redirect_stdout(output):
            yield
    finally:
        os.dup2(kept, STANDARD_OUTPUT)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _silent(args: argparse.Namespace) -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        for name in OUTPUTS:
            if getattr(args, name, None) is not None:
                setattr(args, name, Path(folder) / getattr(args, name).name)
        yield


def _end(error: BaseException, process: int | None) -> NoReturn:
    """Say what went wrong, and end at once: at its usual end JAX would wait for the others, which wait for this one."""
    import jax

    name = "" if process is None else f"process {process}: "
    status, message = BAD_INPUT, message_of(error)
    if isinstance(error, KeyboardInterrupt):
        status, message = INTERRUPTED, "interrupted"
    elif isinstance(error, jax.errors.JaxRuntimeError) and any(sign in str(error) for sign in LOST_SIGNS):
        first_line = str(error).splitlines()[0]
        status, message = LOST, f"another process of the job has ended, or cannot be reached: {first_line}"
    if message is None:
        traceback.print_exception(error)
        status, message = BUG, "ended by an error of the program"
    say(f"{name}{message}")
    sys.stdout.flush()
    os._exit(status)
