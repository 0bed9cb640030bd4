"""Products from panels by the native CPU kernels: integers, exactly; then float32 in an order that depends on nothing.

What is computed for one row does not depend on the other rows, on how many there are, on the matrices that share a
call, or on the number of threads.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import native
from pallas_kernels.matmul.panels import CODES, PANELS, SCALES
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.table import Dims


def quant_matmul(
    x: Float[Array, "... K"], weight: QTensor, act: Activations, index: Int[Array, " B"] | None = None
) -> Float[Array, "... N"]:
    """x @ weight.T in float32, of activations rounded as in `reference`.

    With an index, x is [B, M, K] and the weight a stack: block b is multiplied with matrix index[b].

    The TQ formats round the rotated activations, and their centroids to 16 bits.
    """
    return quant_matmuls(x, [weight], act, index)[0]


def quant_matmuls(
    x: Float[Array, "... K"], weights: Sequence[QTensor], act: Activations, index: Int[Array, " B"] | None = None
) -> list[Float[Array, "... N"]]:
    """The same for several weights in one call: x is rounded once per format, and threads do not wait in between."""
    blocks, numbers, stacks = _operands(x, weights, index)
    call = jax.ffi.ffi_call(
        native.target("specjax_quant_matmul"),
        [jax.ShapeDtypeStruct((*blocks.shape[:2], weight.rows), jnp.float32) for weight in weights],
        vmap_method="sequential",
    )
    formats = ",".join(weight.format for weight in weights)
    outs = call(blocks, numbers, *stacks, formats=formats, isa=native.instruction_set(), wide=act == "a16")
    return [out.reshape(*x.shape[:-1], out.shape[-1]) for out in outs]


def quant_swiglu(
    x: Float[Array, "... K"],
    gate: QTensor,
    up: QTensor,
    down: QTensor,
    act: Activations,
    index: Int[Array, " B"] | None,
    limit: float,
) -> Float[Array, "... N"]:
    """down(silu(gate(x)) * up(x)) in one call."""
    blocks, numbers, stacks = _operands(x, [gate, up, down], index)
    call = jax.ffi.ffi_call(
        native.target("specjax_quant_swiglu"),
        jax.ShapeDtypeStruct((*blocks.shape[:2], down.rows), jnp.float32),
        vmap_method="sequential",
    )
    formats = {"gate_format": gate.format, "up_format": up.format, "down_format": down.format}
    settings = {"isa": native.instruction_set(), "wide": act == "a16"}
    out = call(blocks, numbers, *stacks, **formats, **settings, hidden=np.int64(gate.rows), limit=np.float32(limit))
    return out.reshape(*x.shape[:-1], down.rows)


def _operands(
    x: Array, weights: Sequence[QTensor], index: Int[Array, " B"] | None
) -> tuple[Float[Array, "B M K"], Int[Array, " B"], list[Array]]:
    """Blocks of rows, the number of the matrix of each, and pairs of codes and scales [E, P, bytes]."""
    stacks = [weight.parts[name] for weight in weights for name in (CODES, SCALES)]
    x = x.astype(jnp.float32)
    if index is not None:
        return x, index.astype(jnp.int32), stacks
    return x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1]), jnp.zeros(1, jnp.int32), [part[None] for part in stacks]


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    if (reason := native.reason()) is not None:
        return reason
    if dims["layout"] != PANELS:
        return f"reads the layout {PANELS!r}, see `prepare`"
    return None
