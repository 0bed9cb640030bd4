"""What every command needs of its surroundings: interrupts, kernels, one-line notices, warnings and errors."""

from __future__ import annotations

import errno
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

DEBUG_VARIABLE = "SPECJAX_DEBUG"
BAD_INPUT, LOST, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141
"""Statuses with which the program ends, beside 0 and 1."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system that say that there is no more room."""
DEAF = ("_xla_gc_callback", "__del__")
"""Functions in which Python drops exceptions."""


class UsageError(ValueError):
    """The command line is wrong, or its options contradict each other."""


@contextmanager
def lasting_interrupts() -> Iterator[None]:
    """Let Ctrl-C through also when it comes during a callback or finalizer, whose exceptions Python drops.

    JAX has a callback in every garbage collection. A signal that meets one is sent again a moment later, to the main
    thread where the system can: one that comes to another thread does not end what the main thread waits for.
    """
    main = threading.main_thread().ident
    again = partial(signal.pthread_kill, main) if main and hasattr(signal, "pthread_kill") else signal.raise_signal

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name in DEAF:
            threading.Timer(0.01, again, (number,)).start()
        else:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def chosen_kernels(spec: str | None) -> Iterator[None]:
    """Compute with the kernels that `--kernels` asks for; None leaves the choice as it is."""
    if spec is None:
        yield
        return
    from pallas_kernels import using

    with using(spec):
        yield


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show warnings as one line without the place in the code where they came up."""

    def show(message: Warning | str, category: object, filename: object, lineno: object, *_: object) -> None:
        say(f"warning: {message}")

    previous, warnings.showwarning = warnings.showwarning, show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = previous


@contextmanager
def notices(quiet: bool) -> Iterator[None]:
    """Say what takes long also where nobody reads along at a terminal, as in the log of a job; or never, if quiet."""
    from specjax.runtime.notices import listener, silent

    token = listener.set(silent if quiet else say)
    try:
        yield
    finally:
        listener.reset(token)


def say(line: str) -> None:
    """A line for the user beside the output proper."""
    print(f"specjax: {line}", file=sys.stderr, flush=True)


def message_of(error: BaseException) -> str | None:
    """What to tell the user about an error that the user can mend; None for any other, which is a bug."""
    if isinstance(error, UnicodeDecodeError):
        return f"text that is not UTF-8: {error}"
    if isinstance(error, OSError):
        # Errors of files have their names. So a full disk without a name is the one behind the standard output.
        name = error.filename or ("standard output" if error.errno in FULL else None)
        return f"{name}: {error.strerror}" if name else str(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return f"not enough memory; try fewer tokens, a smaller --batch, or a narrower --dtype ({error})"
    from checkpoints.errors import CheckpointError

    return str(error) if isinstance(error, (ValueError, CheckpointError)) else None
