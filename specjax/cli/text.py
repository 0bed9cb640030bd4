"""Text for people: aligned rows, bold on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the error through: `main` knows the exit status. Rich would end the program with status 1."""
        raise


def console(*, stderr: bool = False) -> Console:
    """A console that never wraps: piped output keeps its lines."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_rows(console: Console, rows: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Two aligned columns, names and values."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        console.print(f"{'':{indent}}[bold]{escape(name):<{width}}[/]  {escape(value)}")


def print_table(console: Console, rows: Sequence[Sequence[str]], remarks: Iterable[str]) -> None:
    """Aligned columns, and lines below them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(cells).rstrip(), markup=False)
    for line in remarks:
        console.print(line, markup=False)
