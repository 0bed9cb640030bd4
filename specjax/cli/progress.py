"""Progress over bytes or steps: a bar on a terminal, nothing in a log file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoints.mapping.table import Progress


@contextmanager
def byte_progress(title: str) -> Iterator[Progress]:
    """Show a bar while inside; the value is to be called with bytes done and bytes in all."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(title, DownloadColumn(), TransferSpeedColumn()) as progress:
        yield progress


@contextmanager
def count_progress(title: str) -> Iterator[Progress]:
    """The same as `byte_progress`, but it counts steps."""
    from rich.progress import MofNCompleteColumn

    with _bar(title, MofNCompleteColumn()) as progress:
        yield progress


@contextmanager
def _bar(title: str, *columns: Any) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    shown = (TextColumn(title), BarColumn(), *columns, TimeRemainingColumn())
    with Bar(*shown, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
