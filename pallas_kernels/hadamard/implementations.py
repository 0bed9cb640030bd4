"""What computes the Walsh-Hadamard transform."""

from pallas_kernels.dispatch import Form, kernel, mosaic_gpu_kernel, operation, triton_kernel
from pallas_kernels.hadamard import pallas_gpu, pallas_tpu, reference, triton_products, xla_matmul

HADAMARD = operation(
    "hadamard",
    xla_matmul=Form(xla_matmul.transform),
    **kernel("pallas_tpu", pallas_tpu.transform, pallas_tpu.unfit),
    **mosaic_gpu_kernel("pallas_gpu", pallas_gpu.transform, pallas_gpu.unfit),
    **triton_kernel("triton", triton_products.transform, triton_products.unfit),
    reference=Form(reference.transform),
)
