"""Products with matrices that stay quantized."""

from typing import get_args

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from pallas_kernels import dispatch
from pallas_kernels.dispatch import ANYWHERE, Implementation
from pallas_kernels.quant_matmul import reference, xla_dequant
from pallas_kernels.quant_matmul.qtensor import Activations, QTensor

IMPLEMENTATIONS = (
    Implementation("xla_dequant", lambda x, weight, act: xla_dequant.quant_matmul(x, weight), ANYWHERE),
    Implementation("reference", reference.quant_matmul),
)


def quant_matmul(
    x: Float[Array, "... K"],
    weight: QTensor,
    *,
    act: Activations | None = None,
    dtype: DTypeLike | None = None,
    impl: str | None = None,
) -> Float[Array, "... N"]:
    """x @ weight.T from the packed bytes, accumulated in float32.

    Args:
        x: the activations.
        weight: one matrix [N, K].
        act: how kernels of integers round the activations, "a8" or "a16"; default: as the weight says. Implementations
            that multiply floats round nothing.
        dtype: of the result; default: that of x.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Raises:
        ValueError: shapes that do not fit together, an unknown `act`, or an implementation that does not fit.
    """
    if weight.ndim != 2 or x.shape[-1] != weight.width:
        raise ValueError(f"quant_matmul: x is [..., K] and weight [N, K]; got x {x.shape}, weight {weight.shape}")
    if act not in (None, *get_args(Activations)):
        raise ValueError(f"quant_matmul: act is {act!r}; accepted: {', '.join(get_args(Activations))}")
    run = dispatch.choose("quant_matmul", IMPLEMENTATIONS, impl, _dims(x, weight)).run
    return run(x, weight, act=act or weight.act).astype(x.dtype if dtype is None else dtype)


def explain(x: Float[Array, "... K"], weight: QTensor, platform: str | None = None) -> str:
    """Which implementation `quant_matmul` chooses, and why not the others."""
    return dispatch.explain("quant_matmul", IMPLEMENTATIONS, _dims(x, weight), platform)


def _dims(x: Array, weight: QTensor) -> dispatch.Dims:
    rows = int(jnp.size(x)) // max(1, x.shape[-1])
    return {"M": rows, "N": weight.rows, "K": weight.width, "format": weight.format, "layout": weight.layout}
