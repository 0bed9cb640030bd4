"""What every command needs of its surroundings: a compilation cache, one-line warnings, one-line errors."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CACHE_VARIABLE = "SPECJAX_CACHE"
DEBUG_VARIABLE = "SPECJAX_DEBUG"
DEAF = ("_xla_gc_callback", "__del__")
"""Functions whose exceptions nobody hears of."""


class UsageError(ValueError):
    """The command line asks for something that does not go together."""


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None when `SPECJAX_CACHE` is empty."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specjax" / "xla"


def use_compilation_cache() -> None:
    """Let JAX keep compiled programs on disk. To be called before JAX is imported, which reads these variables then.

    A cache that the user has configured for JAX itself is left alone, and so is a folder that cannot be made.
    """
    folder = cache_folder()
    if folder is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


@contextmanager
def lasting_interrupts() -> Iterator[None]:
    """Let Ctrl-C through also when it comes during a callback or finalizer, whose exceptions Python drops.

    JAX has a callback in every garbage collection. A signal that meets one is sent again a moment later.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name in DEAF:
            threading.Timer(0.01, signal.raise_signal, (number,)).start()
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


def say(line: str) -> None:
    """A line for the user beside the output proper."""
    print(f"specjax: {line}", file=sys.stderr, flush=True)


def message_of(error: BaseException) -> str | None:
    """What to tell the user about an error that the user can mend; None for any other, which is a bug."""
    if isinstance(error, UnicodeDecodeError):
        return f"text that is not UTF-8: {error}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return f"not enough memory; try fewer tokens, a smaller --batch, or a narrower --dtype ({error})"
    from checkpoints.errors import CheckpointError

    return str(error) if isinstance(error, (ValueError, CheckpointError)) else None
