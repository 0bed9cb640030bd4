"""Whether speculation leaves what a model says as it is: by enumeration, and by tests of a model with its drafter."""

from specjax.analysis.lossless.check import assert_lossless, check_lossless
from specjax.analysis.lossless.report import Check, NotLosslessError, Report, Statistic

__all__ = ["Check", "NotLosslessError", "Report", "Statistic", "assert_lossless", "check_lossless"]
