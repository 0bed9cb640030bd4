"""Checking that a checkpoint is what its family demands, and saying of each violation what to do about it."""

from checkpoints.findings import Finding, Report
from checkpoints.verifier.verify import verify

__all__ = ["Finding", "Report", "verify"]
