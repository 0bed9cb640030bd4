"""The implementations of the totals of a softmax, by the names in the table."""

from pallas_kernels.dispatch import Form, operation
from pallas_kernels.softmax_totals import cpu_native, reference, xla_sums

SOFTMAX_TOTALS = operation(
    "softmax_totals",
    cpu_native=Form(cpu_native.totals, cpu_native.unfit),
    xla_sums=Form(xla_sums.totals),
    reference=Form(reference.totals),
)
