"""A tile of a product of few rows for NVIDIA GPUs, in float32, on CUDA cores: for codes that stand for other numbers.

A thread has a few neighbouring columns of the planes, whose bytes it loads row by row, decodes in registers and
multiplies with every row of x. Neither factor is rounded.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from pallas_kernels.matmul.gpu_tile import Tile, quotient_and_rest
from pallas_kernels.matmul.planes import CHUNK, code_values, floats, plane_names, scale_and_bias
from pallas_kernels.mosaic_gpu import WARPGROUP, laid_out, load, plgpu

UNROLL = 8
"""Bytes of a plane and column that are loaded before the next ones."""


def multiply(tile: Tile, x: Any) -> tuple[Float[Array, " columns"], ...]:
    """The sums of a program for each row of a reference x [blocks, M, K]."""
    kind, group = tile.kind, tile.kind.per_scale
    layout = plgpu.Layout.WG_STRIDED((tile.width,), vec_size=tile.width // WARPGROUP)
    span, fields = 32 * kind.planes[0], 8 // kind.planes[0]

    def row_of(name: str, row: Any) -> Array:
        return load(tile.rows(name, row), layout, interpreted=tile.interpreted)

    def step(index: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        """Adds what some rows of the first plane's bytes come to: columns of the matrix, `span` apart."""
        chunk, turn = quotient_and_rest(index, span // UNROLL)
        starts = [field * span + turn * UNROLL for field in range(fields)]

        def read(start: Any, name: str) -> Array:
            at = chunk if name.startswith("super_") else chunk * (CHUNK // group) + quotient_and_rest(start, group)[0]
            return floats(row_of(name, at))

        meanings = [scale_and_bias(tile.parts, functools.partial(read, start)) for start in starts]
        for row in range(UNROLL):
            bytes_of = [
                row_of(name, chunk * 32 * bits + (turn * UNROLL + row & 32 * bits - 1)).astype(jnp.int32)
                for name, bits in zip(plane_names(kind), kind.planes, strict=True)
            ]
            for start, (scale, bias) in zip(starts, meanings, strict=True):
                codes = [
                    (plane >> quotient_and_rest(start, 32 * bits)[0] * bits & (1 << bits) - 1) << sum(kind.planes[:i])
                    for i, (plane, bits) in enumerate(zip(bytes_of, kind.planes, strict=True))
                ]
                weights = code_values(kind, functools.reduce(jnp.bitwise_or, codes)) * scale
                weights = weights if bias is None else weights + bias
                at = chunk * CHUNK + start + row
                sums = tuple(total + x[tile.block, m, at].astype(jnp.float32) * weights for m, total in enumerate(sums))
        return sums

    zeros = laid_out(jnp.zeros(tile.width, jnp.float32), layout, interpreted=tile.interpreted)
    return lax.fori_loop(*tile.share(tile.chunks * (span // UNROLL)), step, (zeros,) * x.shape[1])
