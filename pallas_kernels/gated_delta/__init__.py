"""Gated delta rule: prefill, verification with rollback, commit."""

from pallas_kernels.gated_delta.api import Records, commit, explain, prefill, verify, verify_snapshots

__all__ = ["Records", "commit", "explain", "prefill", "verify", "verify_snapshots"]
