"""Products from panels by the native CPU kernels: integers, exactly; then float32 in an order that depends on nothing.

What is computed for one row does not depend on the other rows, on how many there are, or on the number of threads.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import native
from pallas_kernels.dispatch import Dims
from pallas_kernels.quant_matmul.panels import CODES, PANELS, SCALES
from pallas_kernels.quant_matmul.qtensor import Activations, QTensor


def quant_matmul(
    x: Float[Array, "... K"], weight: QTensor, act: Activations, index: Int[Array, " B"] | None = None
) -> Float[Array, "... N"]:
    """x @ weight.T in float32, of activations rounded as in `reference`.

    With an index, x is [B, M, K] and the weight a stack: block b is multiplied with matrix index[b].

    The TQ formats round the rotated activations, and their centroids to 16 bits.
    """
    parts = [part if index is not None else part[None] for part in (weight.parts[CODES], weight.parts[SCALES])]
    blocks = x.astype(jnp.float32)
    if index is None:
        blocks, index = blocks.reshape(1, -1, weight.width), jnp.zeros(1, jnp.int32)
    call = jax.ffi.ffi_call(
        native.target("specjax_quant_matmul"),
        jax.ShapeDtypeStruct((*blocks.shape[:2], weight.rows), jnp.float32),
        vmap_method="sequential",
    )
    out = call(
        blocks, index.astype(jnp.int32), *parts, format=weight.format, isa=native.instruction_set(), wide=act == "a16"
    )
    return out.reshape(*x.shape[:-1], weight.rows)


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    if (reason := native.reason()) is not None:
        return reason
    if dims["layout"] != PANELS:
        return f"reads the layout {PANELS!r}, see `prepare`"
    return None
