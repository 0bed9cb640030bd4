"""What was tried to find a loss, and what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Statistic(NamedTuple):
    """A statistical test: what it compared, and how probable a result as bad as this is if nothing is wrong."""

    what: str
    p_value: float


@dataclass(frozen=True)
class Check:
    """One question about a model with its drafter.

    Attributes:
        name: of the check, short.
        question: what it asks.
        tried: how much was looked at.
        faults: what was found that chance cannot explain.
        tests: what chance could explain, and how well.
        advice: where to look if it fails.
    """

    name: str
    question: str
    tried: str
    faults: tuple[str, ...] = ()
    tests: tuple[Statistic, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of a model with its drafter.

    Attributes:
        subject: what was checked.
        checks: in the order in which they ran.
        alarm_rate: how often all checks together may blame a model that is lossless.
        seconds: that they took.
    """

    subject: str
    checks: tuple[Check, ...]
    alarm_rate: float
    seconds: float

    @property
    def threshold(self) -> float:
        """The p-value below which a test fails: the alarm rate shared out among all tests."""
        return self.alarm_rate / max(1, sum(len(check.tests) for check in self.checks))

    def findings(self, check: Check) -> tuple[str, ...]:
        """What speaks against losslessness in a check, as sentences; nothing if it passed."""
        failed = [test for test in check.tests if test.p_value < self.threshold]
        return (*check.faults, *(f"{test.what}: p = {test.p_value:.1e}" for test in failed))

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that found something."""
        return tuple(check for check in self.checks if self.findings(check))

    @property
    def ok(self) -> bool:
        """Whether no check found anything."""
        return not self.failed

    def __str__(self) -> str:
        lines = [self.subject]
        for check in self.checks:
            findings = self.findings(check)
            lines.append(f"{'FAILED' if findings else 'ok':<6} {check.name}: {check.question}")
            lines.append(f"       {check.tried}{self._least(check)}")
            lines += [f"       -> {finding}" for finding in findings]
            if findings and check.advice:
                lines.append(f"       look at: {check.advice}")
        count, tests = len(self.failed), sum(len(check.tests) for check in self.checks)
        lines.append(
            f"{count} of {len(self.checks)} checks failed" if count else f"all {len(self.checks)} checks passed"
        )
        lines[-1] += (
            f", in {self.seconds:.0f} s. {tests} statistical tests fail below p = {self.threshold:.1e}: a lossless"
            f" drafter is blamed once in {1 / self.alarm_rate:.0e} runs."
        )
        return "\n".join(lines)

    def _least(self, check: Check) -> str:
        if not check.tests:
            return ""
        return f"; {len(check.tests)} tests, smallest p {min(test.p_value for test in check.tests):.2g}"

    def as_document(self) -> dict[str, Any]:
        """The report as values for JSON."""
        checks = [
            {**asdict(check), "tests": [test._asdict() for test in check.tests], "findings": self.findings(check)}
            for check in self.checks
        ]
        return {
            "subject": self.subject,
            "ok": self.ok,
            "alarm_rate": self.alarm_rate,
            "threshold": self.threshold,
            "seconds": self.seconds,
            "checks": checks,
        }


class NotLosslessError(AssertionError):
    """A drafter changes what the model says; `report` says how that was found."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
