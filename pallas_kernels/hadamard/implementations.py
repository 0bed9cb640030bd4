"""The implementations of the Walsh-Hadamard transform, in order of preference.

The Pallas kernels are tested under the interpreters, lowered for their platforms and compiled for TPUs, but not yet
measured on a device: they run when named.
"""

from functools import partial

from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.hadamard import pallas_gpu, pallas_tpu, reference, xla_matmul

IMPLEMENTATIONS = (
    Implementation("xla_matmul", xla_matmul.transform, ANYWHERE),
    Implementation("pallas_tpu", pallas_tpu.transform, unfit=pallas_tpu.unfit),
    Implementation("pallas_tpu_interpret", partial(pallas_tpu.transform, interpret=True), unfit=pallas_tpu.unfit),
    Implementation("pallas_gpu", pallas_gpu.transform, unfit=pallas_gpu.unfit),
    Implementation("pallas_gpu_interpret", partial(pallas_gpu.transform, interpret=True), unfit=pallas_gpu.unfit),
    Implementation("reference", reference.transform),
)
