"""The implementations of the causal convolution, in order of preference.

The Pallas kernels are tested under the interpreters, lowered for their platforms and compiled for TPUs, but not yet
measured on a device: they run when named. They have no derivatives.
"""

from functools import partial

from pallas_kernels.causal_conv1d import cpu_native, pallas_gpu, pallas_tpu, reference, xla_shifted
from pallas_kernels.dispatch import ANYWHERE, Implementation

IMPLEMENTATIONS = (
    Implementation("cpu_native", cpu_native.convolve, frozenset({"cpu"}), cpu_native.unfit),
    Implementation("xla_shifted", xla_shifted.convolve, ANYWHERE),
    Implementation("pallas_tpu", pallas_tpu.convolve, unfit=pallas_tpu.unfit),
    Implementation("pallas_tpu_interpret", partial(pallas_tpu.convolve, interpret=True), unfit=pallas_tpu.unfit),
    Implementation("pallas_gpu", pallas_gpu.convolve, unfit=pallas_gpu.unfit),
    Implementation("pallas_gpu_interpret", partial(pallas_gpu.convolve, interpret=True), unfit=pallas_gpu.unfit),
    Implementation("reference", reference.convolve),
)
