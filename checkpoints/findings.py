"""What a verification finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["error", "note"]


@dataclass(frozen=True)
class Finding:
    """Something about a checkpoint.

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
    """All findings, and what was looked at.

    Attributes:
        findings: in the order in which they were found.
        checked: invariants that hold, in words.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """Findings that are no mere notes."""
        return [finding for finding in self.findings if finding.level == "error"]

    def error(self, what: str, fix: str) -> None:
        """Add an error."""
        self.findings.append(Finding("error", what, fix))

    def note(self, what: str, fix: str) -> None:
        """Add a note."""
        self.findings.append(Finding("note", what, fix))
