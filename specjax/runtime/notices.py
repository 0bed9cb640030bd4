"""Messages to the user about long work that shows nothing, above all building programs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

DELAY = 2.0
"""Seconds after which the message is shown."""


def _to_people(line: str) -> None:
    """Print the line if somebody can read it: at a terminal or in a notebook."""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(f"specjax: {line}", file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """A listener that shows nothing, not even bars."""


listener: ContextVar[Callable[[str], None]] = ContextVar("listener", default=_to_people)
"""The function that gets each line. Set it to show the lines elsewhere."""


@contextmanager
def announced(line: str) -> Iterator[None]:
    """Say the line if what is done inside takes longer than `DELAY`."""
    timer = threading.Timer(DELAY, listener.get(), (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar at a terminal or in a notebook, to be told how many steps are done, of how many."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    shown = listener.get() is not silent and (console.is_terminal or console.is_jupyter)
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
