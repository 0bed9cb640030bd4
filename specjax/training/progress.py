"""Progress of a run: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

LINE_SECONDS = 30.0
"""Time between lines when the output is no terminal."""


class Progress:
    """Shows steps, loss, tokens per second and the time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self._bar = RichProgress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=None, status="")
        self._first = self._total = 0
        self._started = self._printed = monotonic()

    @contextmanager
    def track(self, first: int, total: int) -> Iterator[None]:
        """Show the bar while inside, from step `first` to `total`."""
        self._bar.update(self._task, completed=first, total=total)
        self._first, self._total, self._started = first, total, monotonic()
        with self._bar:
            yield

    def step(self, step: int, values: dict[str, float]) -> None:
        """Report a finished step with its loss and tokens per second."""
        status = f"loss {values['loss']:.3f}  {values['tokens_per_second']:.0f} tokens/s"
        if "mtp_loss_1" in values:
            status = f"mtp {values['mtp_loss_1']:.3f}  {status}"
        self._bar.update(self._task, completed=step, status=status)
        if not self.console.is_terminal and (monotonic() - self._printed > LINE_SECONDS or step == self._total):
            self._printed = monotonic()
            seconds = (monotonic() - self._started) / (step - self._first) * (self._total - step)
            left = timedelta(seconds=round(seconds))
            self.say(f"step {step}/{self._total}  {status}  left {left}")

    def held_out(self, step: int, values: dict[str, float]) -> None:
        """Report the losses of an evaluation on held-out text."""
        self.say(f"held out at step {step}: " + "  ".join(f"{name} {value:.3f}" for name, value in values.items()))

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(line, highlight=False, soft_wrap=True)
