"""Progress over bytes or steps: a bar on a terminal, nothing in a log file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoints.mapping.table import Progress


@contextmanager
def byte_progress(title: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show a bar while inside, unless quiet; the value is to be called with bytes done and bytes in all."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(title, DownloadColumn(), TransferSpeedColumn(), quiet=quiet) as progress:
        yield progress


@contextmanager
def count_progress(title: str) -> Iterator[Progress]:
    """The same as `byte_progress`, but it counts steps."""
    from rich.progress import MofNCompleteColumn

    with _bar(title, MofNCompleteColumn()) as progress:
        yield progress


@contextmanager
def prompt_progress(*, quiet: bool) -> Iterator[Callable[[int, int, int], None]]:
    """The same for prompts, unless quiet; to be called with prompts done, prompts in all, and tokens that they have."""
    from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (MofNCompleteColumn(), TextColumn("{task.fields[tokens]} tokens"), TimeElapsedColumn())
    with _bar("prompts", *columns, quiet=quiet, tokens=0) as progress:
        yield lambda done, total, tokens: progress(done, total, tokens=tokens)


@contextmanager
def _bar(title: str, *columns: Any, quiet: bool = False, **fields: Any) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    shown = (TextColumn(title), BarColumn(), *columns, TimeRemainingColumn())
    with Bar(*shown, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None, **fields)
        yield lambda done, total, **news: bar.update(task, completed=done, total=total, **news)
