"""Gated delta rule: prefill, verification with rollback, commit."""

from pallas_kernels.gated_delta.api import commit, explain, prefill, verify, verify_snapshots
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.tokens import Records

__all__ = ["HeadMap", "Records", "commit", "explain", "prefill", "verify", "verify_snapshots"]
