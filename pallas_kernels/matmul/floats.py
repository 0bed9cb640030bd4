"""Products with matrices of floats, [N, K] as files store them."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.arguments import INTEGERS, expect_dtype
from pallas_kernels.dispatch import Form
from pallas_kernels.table import Dims

FEW_ROWS = 16
"""At most so many rows are bound by reading the matrix; above it a product is bound by arithmetic."""


def _dot(x: Float[Array, "... K"], weight: Float[Array, "N K"]) -> Float[Array, "... N"]:
    return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


@partial(jax.jit, inline=True)  # traced once for shapes, not in every layer
def _weight_left(x: Float[Array, "... K"], weight: Float[Array, "N K"]) -> Float[Array, "... N"]:
    """With the matrix as the left operand; the barrier keeps XLA from swapping the operands back.

    Decoding multiplies each weight with a handful of rows and is bound by reading the weight once. XLA's CPU backend
    reaches that bound only so. `benchmarks/few_row_matmul.py` measures both forms.
    """
    rows = math.prod(x.shape[:-1])
    # XLA's few-row product works in tiles of a power of two rows: eight cost less than five. For one row it has a
    # product of its own, which is slow for 16-bit weights.
    padded = 2 if rows == 1 and weight.dtype.itemsize < 4 else 1 << (rows - 1).bit_length()
    flat = jnp.pad(x.reshape(rows, x.shape[-1]), ((0, padded - rows), (0, 0)))
    out = lax.dot_general(weight, flat, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return lax.optimization_barrier(out)[:, :rows].T.reshape(*x.shape[:-1], weight.shape[0])


def _too_many_rows(dims: Dims) -> str | None:
    return f"M={dims['M']}: made for at most {FEW_ROWS} rows" if dims["M"] > FEW_ROWS else None


def _reference(x: Float[Array, "... K"], weight: Float[Array, "N K"]) -> Float[Array, "... N"]:
    return jnp.einsum("...k,nk->...n", x.astype(jnp.float32), weight.astype(jnp.float32), precision="highest")


FLOAT_MATMUL = dispatch.operation(
    "matmul.float", xla_few_rows=Form(_weight_left, _too_many_rows), xla_dot=Form(_dot), reference=Form(_reference)
)


def float_matmul(
    x: Float[Array, "... K"],
    weight: Float[Array, "N K"] | Float[Array, "E N K"],
    *,
    index: Int[Array, " B"] | None = None,
    dtype: DTypeLike | None = None,
    impl: str | None = None,
) -> Float[Array, "... N"]:
    """x @ weight.T of factors in the weight's dtype, accumulated in float32.

    Args:
        x: the activations.
        weight: one matrix [N, K]; with an index a stack [E, N, K].
        index: x is [B, M, K], and block b is multiplied with matrix index[b] of the stack. Blocks of a number below
            zero must be zeros: so is their product.
        dtype: of the result; default: that of x.
        impl: name of an implementation; default: the first that fits, see `explain_float`.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or an implementation that does not fit.
    """
    blocks = 0 if index is None else 1
    if weight.ndim != 2 + blocks or x.shape[-1:] != weight.shape[-1:] or (blocks and x.ndim != 3):
        raise ValueError(
            "float_matmul: x is [..., K] and the weight [N, K], or with an index [B, M, K] and [E, N, K]; "
            f"got x {x.shape}, weight {weight.shape}"
        )
    run = dispatch.choose(FLOAT_MATMUL, impl, _dims(x.shape[:-1], weight)).run
    dtype = x.dtype if dtype is None else dtype
    if index is None:
        return run(x.astype(weight.dtype), weight).astype(dtype)
    expect_dtype("float_matmul", "index", index, INTEGERS)
    if index.shape != x.shape[:1]:
        raise ValueError(f"float_matmul: index has shape {index.shape}; [B] is {x.shape[:1]}")

    def one_block(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        rows, number = block
        return None, run(rows.astype(weight.dtype), weight[number]).astype(dtype)

    return lax.scan(one_block, None, (x, jnp.maximum(index, 0)))[1]


def explain_float(x: Float[Array, "... K"], weight: Float[Array, "N K"], platform: str | None = None) -> str:
    """Which implementation `float_matmul` chooses, and why not the others; arrays or their shapes."""
    return dispatch.explain(FLOAT_MATMUL, _dims(x.shape[:-1], weight), platform)


def _dims(lead: tuple[int, ...], weight: Array | jax.ShapeDtypeStruct) -> Dims:
    (*stack, rows, width), blocks = weight.shape, {}
    if stack:
        lead, blocks = lead[1:], {"B": lead[0], "E": stack[0]}
    return {"M": math.prod(lead), "N": rows, "K": width, "dtype": str(weight.dtype), **blocks}
