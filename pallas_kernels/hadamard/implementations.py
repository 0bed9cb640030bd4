"""What computes the Walsh-Hadamard transform."""

from functools import partial

from pallas_kernels.dispatch import Form, kernel, operation
from pallas_kernels.hadamard import pallas_gpu, pallas_tpu, reference, triton_products, xla_matmul

HADAMARD = operation(
    "hadamard",
    xla_matmul=Form(xla_matmul.transform),
    **kernel("pallas_tpu", pallas_tpu.transform, pallas_tpu.unfit),
    **kernel("pallas_gpu", pallas_gpu.transform, pallas_gpu.unfit),
    **kernel(
        "triton", triton_products.transform, triton_products.unfit, partial(triton_products.unfit, interpreted=True)
    ),
    reference=Form(reference.transform),
)
