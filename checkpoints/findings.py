"""What a verification finds, and how it is reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["error", "note"]


@dataclass(frozen=True)
class Finding:
    """One fact about a checkpoint, with what to do about it.

    Attributes:
        level: an error makes it unusable or wrong; a note is worth knowing.
        what: what is wrong, and what was found.
        fix: what to do about it.
    """

    level: Level
    what: str
    fix: str


@dataclass
class Report:
    """The result of a verification.

    Attributes:
        findings: in the order in which they were found.
        checked: invariants that hold, in words.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors, not notes."""
        return [finding for finding in self.findings if finding.level == "error"]

    def error(self, what: str, fix: str) -> None:
        """Add a finding that makes the checkpoint unusable or wrong."""
        self.findings.append(Finding("error", what, fix))

    def note(self, what: str, fix: str) -> None:
        """Add a finding that is worth knowing and does no harm."""
        self.findings.append(Finding("note", what, fix))
