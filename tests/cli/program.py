"""The program as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one thing that a refused command says."""
        assert self.status == 2, self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        said = [line for line in self.err.splitlines() if line.startswith("specjax: ")]
        assert len(said) == 1, self.err
        return self.err.removeprefix("specjax: error: ")


Cli = Callable[..., Ran]
