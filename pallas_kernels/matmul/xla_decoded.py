"""Decode a whole matrix to bfloat16, then multiply: plain XLA, for many rows on GPUs.

Decoding is done once for all rows: the more there are, the less it matters. Both factors are rounded to bfloat16;
products are added in float32.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import BFloat16, Float, Shaped

from pallas_kernels.matmul.config import FEW_ROWS
from pallas_kernels.matmul.formats import BlockFormat
from pallas_kernels.matmul.operands import Operands, wrong_layout
from pallas_kernels.matmul.planes import CHUNK, LANES, values
from pallas_kernels.matmul.qtensor import QTensor
from pallas_kernels.table import Dims

MOST_VALUES = 1 << 28
"""Values that are decoded at a time at most: half a gibibyte."""


def unfit(dims: Dims) -> str | None:
    """Why this form cannot serve a call."""
    return wrong_layout(dims) or (f"M={dims['M']} is at most {FEW_ROWS}" if dims["M"] <= FEW_ROWS else None)


def quant_matmul(x: Float[Array, "... K"], weight: QTensor) -> Float[Array, "... N"]:
    """x @ weight.T in float32, of factors that are rounded to bfloat16."""
    given = Operands.of(x, weight, None, jnp.bfloat16)
    parts = {name: part[0] for name, part in given.parts.items()}
    tile = max(MOST_VALUES // (given.chunks * CHUNK) // LANES, 1) * LANES
    outs: list[Array] = []
    for start in range(0, given.lanes, tile):
        own = {name: part[:, start : start + tile] for name, part in parts.items()}
        # Nothing is decoded before there is an x, and no tile before the last product: each takes memory until then.
        x_now, own, outs = lax.optimization_barrier((given.blocks[0], own, outs))
        outs.append(_product(x_now, given.kind, own))
    return given.result(jnp.concatenate(outs, axis=-1)[None])


def _product(
    x: BFloat16[Array, "M K"], kind: BlockFormat, parts: dict[str, Shaped[Array, "R N"]]
) -> Float[Array, "M N"]:
    # Products that decode their own tiles would do it anew for each tile of rows.
    matrix = lax.optimization_barrier(values(kind, parts).astype(jnp.bfloat16))
    return lax.dot_general(x, matrix, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
