"""What computes the causal convolution. Kernels for accelerators have no derivatives."""

from pallas_kernels.causal_conv1d import cpu_native, pallas_gpu, pallas_tpu, reference, triton_taps, xla_shifted
from pallas_kernels.dispatch import Form, kernel, mosaic_gpu_kernel, operation, triton_kernel

CAUSAL_CONV1D = operation(
    "causal_conv1d",
    cpu_native=Form(cpu_native.convolve, cpu_native.unfit),
    xla_shifted=Form(xla_shifted.convolve),
    **kernel("pallas_tpu", pallas_tpu.convolve, pallas_tpu.unfit),
    **mosaic_gpu_kernel("pallas_gpu", pallas_gpu.convolve, pallas_gpu.unfit),
    **triton_kernel("triton", triton_taps.convolve, triton_taps.unfit),
    reference=Form(reference.convolve),
)
