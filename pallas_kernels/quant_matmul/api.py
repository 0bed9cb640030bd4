"""Products with matrices that stay quantized."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.derivatives import with_derivatives_of
from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.mosaic_gpu import on_hopper
from pallas_kernels.quant_matmul import (
    cpu_native,
    pallas_gpu_prefill,
    pallas_tpu,
    reference,
    triton_planes,
    xla_dequant,
)
from pallas_kernels.quant_matmul.qtensor import Activations, QTensor

Product = Callable[[Array, QTensor, Activations, Array | None], Array]


def _block_by_block(one: Callable[[Array, QTensor, Activations], Array]) -> Product:
    """For products that know one matrix only."""

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


def _natively(x: Array, weight: QTensor, act: Activations, index: Array | None) -> Array:
    """With the derivatives of XLA's form: rounding has none."""
    product = with_derivatives_of(
        lambda x, weight, index: _by_xla(x, weight, act, index),
        lambda x, weight, index: cpu_native.quant_matmul(x, weight, act, index),
    )
    return product(x, weight, index)


IMPLEMENTATIONS = (
    Implementation("cpu_native", _natively, frozenset({"cpu"}), cpu_native.unfit),
    Implementation("xla_dequant", _by_xla, ANYWHERE),
    # Tested under the interpreters, lowered for their platforms and compiled for v5e and v6e, but not yet measured on a
    # device: they run when named.
    Implementation("pallas_tpu", pallas_tpu.quant_matmul, unfit=pallas_tpu.unfit),
    Implementation("pallas_tpu_interpret", partial(pallas_tpu.quant_matmul, interpret=True), unfit=pallas_tpu.unfit),
    Implementation("pallas_gpu", pallas_gpu_prefill.by_rows, unfit=pallas_gpu_prefill.unfit_by_rows),
    Implementation(
        "pallas_gpu_interpret", partial(pallas_gpu_prefill.by_rows, interpret=True), unfit=pallas_gpu_prefill.unfit
    ),
    Implementation("pallas_gpu_prefill", pallas_gpu_prefill.quant_matmul, unfit=on_hopper(pallas_gpu_prefill.unfit)),
    Implementation(
        "pallas_gpu_prefill_interpret",
        partial(pallas_gpu_prefill.quant_matmul, interpret=True),
        unfit=pallas_gpu_prefill.unfit,
    ),
    Implementation("triton", triton_planes.quant_matmul, unfit=triton_planes.unfit),
    Implementation(
        "triton_interpret",
        partial(triton_planes.quant_matmul, interpret=True),
        unfit=partial(triton_planes.unfit, interpreted=True),
    ),
    Implementation("reference", _block_by_block(reference.quant_matmul)),
)


def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    *,
    index: Int[Array, " B"] | None = None,
    act: Activations | None = None,
    dtype: DTypeLike | None = None,
    impl: str | None = None,
) -> Float[Array, "... N"]:
    """x @ weight.T from the packed bytes, accumulated in float32. Differentiable in x in XLA and native forms.

    Args:
        x: the activations.
        weight: one matrix [N, K]; with an index a stack [E, N, K].
        index: x is [B, M, K], and block b is multiplied with matrix index[b] of the stack, without a copy of it.
            Numbers beyond the stack are clipped; one below zero stands for rows that nobody reads: they become zeros.
        act: how kernels of integers round the activations, "a8" or "a16"; default: as the weight says. Implementations
            that multiply floats round nothing.
        dtype: of the result; default: that of x.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: shapes or dtypes that do not fit together, an unknown `act`, or an implementation that does not fit.
    """
    check("quant_matmul", x, {"weight": weight}, index, act)
    run = dispatch.choose("quant_matmul", IMPLEMENTATIONS, impl, dims_of(x, weight)).run
    return run(x, weight, act or weight.act, index).astype(x.dtype if dtype is None else dtype)


def check(name: str, x: Array, weights: Mapping[str, QTensor], index: Array | None, act: Activations | None) -> None:
    """ValueError for arguments that do not fit together; the weights by the names of their arguments."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{name}: x is {x.dtype}; accepted: floats")
    if act not in (None, *get_args(Activations)):
        raise ValueError(f"{name}: act is {act!r}; accepted: {', '.join(get_args(Activations))}")
    if index is not None and not jnp.issubdtype(index.dtype, jnp.integer):
        raise ValueError(f"{name}: index is {index.dtype}; accepted: integers")
    for argument, weight in weights.items():
        if index is None and (weight.ndim != 2 or x.shape[-1:] != (weight.width,)):
            raise ValueError(f"{name}: x is [..., K] and {argument} [N, K]; got x {x.shape}, {argument} {weight.shape}")
        if index is not None and (
            x.ndim != 3 or weight.ndim != 3 or index.shape != x.shape[:1] or x.shape[-1] != weight.width
        ):
            raise ValueError(
                f"{name}: with an index [B], x is [B, M, K] and {argument} [E, N, K]; "
                f"got index {index.shape}, x {x.shape}, {argument} {weight.shape}"
            )


def explain(x: Float[Array, "... K"], weight: QTensor, platform: str | None = None) -> str:
    """Which implementation `quant_matmul` chooses, and why not the others."""
    return dispatch.explain("quant_matmul", IMPLEMENTATIONS, dims_of(x, weight), platform)


def dims_of(x: Array | jax.ShapeDtypeStruct, weight: QTensor) -> dispatch.Dims:
    """What is static in a call."""
    rows = math.prod(x.shape[:-1] if weight.ndim == 2 else x.shape[1:-1])  # of a block, where there are blocks
    return {"M": rows, "N": weight.rows, "K": weight.width, "format": weight.format, "layout": weight.layout}
