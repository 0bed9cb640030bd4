"""The figures of kernels in a file: whole after each call, so that a run goes on where the one before it ended.

A kernel can take its process along, or leave the device unusable for it. So the file also says what is being tried: the
next run leaves that out, and goes on with the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pallas_kernels.cases import Case
from pallas_kernels.files import replace_text

ENDED = "ended the process that ran it"


@dataclass(frozen=True)
class Result:
    """What was measured of an implementation, or why nothing was; `seconds` are those of a call."""

    operation: str
    sizes: str
    impl: str
    num_bytes: int
    seconds: float | None = None
    share_of_limit: float | None = None
    times_as_fast_as_xla: float | None = None
    error: float | None = None
    refused: str | None = None


@dataclass
class Figures:
    """What is known, and where it is kept.

    Attributes:
        file: None keeps nothing.
        about: the machine, the rate of its memory, and which sizes; results of another machine or of other sizes do not
            count.
        results: of the calls that are done.
        fatal: operation, sizes and implementation of what went wrong on the device, and why.
    """

    file: Path | None
    about: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    fatal: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @classmethod
    def at(cls, file: Path | None, about: dict[str, Any]) -> Figures:
        """Those that a file has of such a machine; a file that cannot be read has none."""
        found = cls(file, about)
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(file.read_text()) if file is not None else {}
            if all(content[name] == about[name] for name in ("machine", "small")):
                found.results = [Result(**each) for each in content["results"]]
                found.fatal = {(*names,): why for *names, why in content["fatal"]}
        return found

    def has(self, case: Case) -> bool:
        """Whether a call is done."""
        return any((each.operation, each.sizes) == (case.operation.name, case.sizes) for each in self.results)

    def why_not(self, case: Case, impl: str) -> str | None:
        """Why an implementation must not be tried again, or None."""
        return self.fatal.get((case.operation.name, case.sizes, impl))

    def trying(self, case: Case, impl: str) -> None:
        """Note what is about to run."""
        self.fatal[case.operation.name, case.sizes, impl] = ENDED
        self.write()

    def went_wrong(self, case: Case, impl: str, why: str) -> None:
        """Note what came of it; what comes after it on this device, in this process, says nothing."""
        self.fatal[case.operation.name, case.sizes, impl] = why
        self.write()

    def went_well(self, case: Case, impl: str) -> None:
        """Take the note back."""
        del self.fatal[case.operation.name, case.sizes, impl]

    def add(self, results: Iterable[Result]) -> None:
        """Keep what was found of a call."""
        self.results += results
        self.write()

    def write(self) -> None:
        """Replace the file."""
        if self.file is None:
            return
        results = [{name: value for name, value in asdict(each).items() if value is not None} for each in self.results]
        fatal = [[*names, why] for names, why in self.fatal.items()]
        replace_text(self.file, json.dumps({**self.about, "fatal": fatal, "results": results}, indent=1) + "\n")
