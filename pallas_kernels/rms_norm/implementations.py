"""The implementations of norms, by the names in the table."""

from pallas_kernels.dispatch import Form, operation
from pallas_kernels.rms_norm import cpu_native, reference, xla_reduce

RMS_NORM = operation(
    "rms_norm",
    cpu_native=Form(cpu_native.normalize, cpu_native.unfit),
    xla_reduce=Form(xla_reduce.normalize),
    reference=Form(reference.normalize),
)
