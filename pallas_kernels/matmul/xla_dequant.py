"""Decode a tile of rows, multiply, go on to the next: plain XLA, for every platform, format and layout."""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from pallas_kernels.matmul.layouts import dequantize
from pallas_kernels.matmul.planes import PLANES
from pallas_kernels.matmul.qtensor import QTensor

TILE_VALUES = 1 << 24
"""Values decoded at a time at most, so that a large matrix never stands in memory as floats."""


def quant_matmul(x: Float[Array, "... K"], weight: QTensor) -> Float[Array, "... N"]:
    """x @ weight.T, accumulated in float32, at JAX's default precision: on CPUs nothing is rounded."""
    flat = x.reshape(-1, weight.width).astype(jnp.float32)
    axis = 1 if weight.layout == PLANES else 0
    count = next(iter(weight.parts.values())).shape[axis]
    rows_per_group = -(-weight.rows // count)
    tile = max(1, TILE_VALUES // (rows_per_group * weight.width))
    if tile >= count:
        return _product(flat, weight).reshape(*x.shape[:-1], weight.rows)

    def one_tile(index: Array, out: Array) -> Array:
        start = jnp.minimum(index * tile, count - tile)
        parts = {name: lax.dynamic_slice_in_dim(part, start, tile, axis) for name, part in weight.parts.items()}
        values = _product(flat, replace(weight, parts=parts, rows=tile * rows_per_group))
        return lax.dynamic_update_slice_in_dim(out, values, start * rows_per_group, axis=1)

    out = jnp.zeros((flat.shape[0], count * rows_per_group), jnp.float32)
    out = lax.fori_loop(0, -(-count // tile), one_tile, out)
    return out[:, : weight.rows].reshape(*x.shape[:-1], weight.rows)


def _product(x: Array, weight: QTensor) -> Array:
    return lax.dot_general(x, dequantize(weight), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
