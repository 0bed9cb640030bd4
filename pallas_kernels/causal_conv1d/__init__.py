"""Causal depthwise convolution with an explicit window."""

from pallas_kernels.causal_conv1d.api import causal_conv1d, explain, window_at

__all__ = ["causal_conv1d", "explain", "window_at"]
