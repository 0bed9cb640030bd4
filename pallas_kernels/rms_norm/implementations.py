"""The implementations of norms, in order of preference."""

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.rms_norm import cpu_native, reference, xla_reduce

IMPLEMENTATIONS = (
    Implementation("cpu_native", cpu_native.normalize, frozenset({"cpu"}), cpu_native.unfit),
    Implementation("xla_reduce", xla_reduce.normalize, ANYWHERE),
    Implementation("reference", reference.normalize),
)
