"""Products with matrices that stay quantized."""

import math
from collections.abc import Mapping
from typing import get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.matmul.implementations import QUANT_MATMUL
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.table import Dims


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
        act: how native kernels round the activations, "a8" or "a16"; default: as the weight says. On NVIDIA GPUs few
            rows are rounded to 16 bits, whatever it is, and many to bfloat16, as the matrix is then. Other
            implementations that multiply floats round nothing.
        dtype: of the result; default: that of x.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: shapes or dtypes that do not fit together, an unknown `act`, or an implementation that does not fit.
    """
    check("quant_matmul", x, {"weight": weight}, index, act)
    run, dtype = dispatch.choose(QUANT_MATMUL, impl, dims_of(x, weight)).run, x.dtype if dtype is None else dtype
    if x.size == 0:
        return jnp.zeros((*x.shape[:-1], weight.rows), dtype)
    return run(x, weight, act or weight.act, index).astype(dtype)


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
    return dispatch.explain(QUANT_MATMUL, dims_of(x, weight), platform)


def dims_of(x: Array | jax.ShapeDtypeStruct, weight: QTensor) -> Dims:
    """The static sizes and names of a call, for `dispatch`; of a stack also B blocks and E matrices."""
    rows, blocks = math.prod(x.shape[:-1]), {}
    if weight.ndim == 3:
        rows, blocks = math.prod(x.shape[1:-1]), {"B": x.shape[0], "E": weight.shape[0]}
    return {"M": rows, "N": weight.rows, "K": weight.width, "format": weight.format, "layout": weight.layout, **blocks}
