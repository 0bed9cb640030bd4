"""Norms over the last axis: root mean square and L2."""

from pallas_kernels.rms_norm.api import explain, l2_norm, rms_norm

__all__ = ["explain", "l2_norm", "rms_norm"]
