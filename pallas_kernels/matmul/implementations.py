"""What computes products with quantized matrices."""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.capability import on_hopper, since_hopper
from pallas_kernels.derivatives import with_derivatives_of
from pallas_kernels.dispatch import Form, kernel, operation, triton_kernel
from pallas_kernels.matmul import (
    cpu_native,
    pallas_gpu,
    pallas_gpu_prefill,
    pallas_tpu,
    reference,
    triton_planes,
    triton_prefill,
    xla_decoded,
    xla_dequant,
)
from pallas_kernels.matmul.operands import unfit_for_few_rows, unfit_for_many_rows
from pallas_kernels.matmul.qtensor import Activations, QTensor

Product = Callable[[Array, QTensor, Activations, Array | None], Array]


def _block_by_block(one: Callable[[Array, QTensor, Activations], Array]) -> Product:
    """Make a product that takes one matrix into one that takes a stack and an index, block by block."""

    def product(x: Array, weight: QTensor, act: Activations, index: Array | None) -> Array:
        if index is None:
            return one(x, weight, act)
        last = weight.shape[0] - 1

        def block(args: tuple[Array, Array]) -> Array:
            rows, expert = args
            return jnp.where(expert < 0, 0, one(rows, weight[jnp.clip(expert, 0, last)], act))

        return lax.map(block, (x, index))

    return product


_by_xla = _block_by_block(lambda x, weight, act: xla_dequant.quant_matmul(x, weight))


Products = Callable[[Array, Sequence[QTensor], Activations, Array | None], list[Array]]


def _rounding(run: Products) -> Products:
    """Products that round x, with the derivatives of XLA's form, because rounding has none."""

    def products(x: Array, weights: Sequence[QTensor], act: Activations, index: Array | None) -> list[Array]:
        call = with_derivatives_of(
            lambda x, index, *weights: [_by_xla(x, weight, act, index) for weight in weights],
            lambda x, index, *weights: run(x, weights, act, index),
        )
        return call(x, index, *weights)

    return products


def _alone(run: Products) -> Product:
    return lambda x, weight, act, index: run(x, [weight], act, index)[0]


_natively = _rounding(cpu_native.quant_matmuls)
_on_gpu, _on_gpu_interpreted = (
    _rounding(partial(pallas_gpu.quant_matmuls, interpret=interpret)) for interpret in (False, True)
)


TOGETHER: dict[str, Products] = {
    "cpu_native": _natively,
    "pallas_gpu": _on_gpu,
    "pallas_gpu_interpret": _on_gpu_interpreted,
}
"""Implementations that multiply x with several matrices in one call."""

QUANT_MATMUL = operation(
    "matmul.packed",
    cpu_native=Form(_alone(_natively), cpu_native.unfit),
    xla_decoded=Form(_block_by_block(lambda x, weight, act: xla_decoded.quant_matmul(x, weight)), xla_decoded.unfit),
    xla_dequant=Form(_by_xla),
    **kernel("pallas_tpu", pallas_tpu.quant_matmul, pallas_tpu.unfit),
    pallas_gpu=Form(_alone(_on_gpu), since_hopper(unfit_for_few_rows)),
    pallas_gpu_interpret=Form(_alone(_on_gpu_interpreted), unfit_for_few_rows),
    **kernel(
        "pallas_gpu_prefill", pallas_gpu_prefill.quant_matmul, on_hopper(unfit_for_many_rows), unfit_for_many_rows
    ),
    **triton_kernel("triton", triton_planes.quant_matmul, triton_planes.unfit),
    **triton_kernel("triton_prefill", triton_prefill.quant_matmul, triton_prefill.unfit),
    reference=Form(_block_by_block(reference.quant_matmul)),
)
